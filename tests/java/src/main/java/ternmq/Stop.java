package ternmq;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** When a consumer shall end: after {@code count} messages, after {@code timeoutMs}, or when standard input ends. */
final class Stop {
    private final CountDownLatch asked = new CountDownLatch(1);
    private final long deadlineNanos;
    private long left;

    Stop(Options options, BufferedReader input) {
        deadlineNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(options.bigNumber("timeoutMs", 60_000));
        left = options.bigNumber("count", Long.MAX_VALUE);
        var watcher = new Thread(() -> {
            try {
                while (input.readLine() != null) {
                    continue;
                }
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            } finally {
                asked.countDown();
            }
        }, "standard-input");
        watcher.setDaemon(true);
        watcher.start();
    }

    /** Counts messages that are done with. */
    synchronized void consumed(int messages) {
        left -= messages;
        if (left <= 0) {
            asked.countDown();
        }
    }

    boolean isAsked() {
        return asked.getCount() == 0 || System.nanoTime() >= deadlineNanos;
    }

    void await() throws InterruptedException {
        boolean unused = asked.await(deadlineNanos - System.nanoTime(), TimeUnit.NANOSECONDS);
    }
}
