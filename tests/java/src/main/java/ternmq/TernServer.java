package ternmq;

import java.io.IOException;
import java.util.Arrays;

/**
 * Runs the main class named first with the other arguments, and stops cleanly when standard input ends.
 *
 * <p>So a RocketMQ server dies with the program that started it, even one that was killed: whoever holds the other end
 * of the pipe need not do anything. Leaving by {@code System.exit} runs the server's own shutdown hook.
 */
public final class TernServer {
    private TernServer() {}

    public static void main(String[] arguments) throws Exception {
        var watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (IOException closed) {
                System.err.println("standard input: " + closed);
            }
            System.exit(0);
        }, "standard-input");
        watcher.setDaemon(true);
        watcher.start();
        String[] others = Arrays.copyOfRange(arguments, 1, arguments.length);
        Class.forName(arguments[0]).getMethod("main", String[].class).invoke(null, (Object) others);
    }
}
