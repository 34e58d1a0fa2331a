package ternmq;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * A RocketMQ client that another program drives through its standard streams.
 *
 * <p>{@code java ternmq.TernPeer COMMAND} reads its options as one JSON object from the first line of standard input
 * and writes one JSON object a line to standard output, each with a field {@code event}. Arguments are not used for
 * options because the JVM decodes them by locale, which spoils Chinese text under {@code LANG=C}. Everything else that
 * RocketMQ prints goes to standard error. The end of standard input asks the program to stop; the last line is
 * {@code {"event": "done"}}, or {@code {"event": "failed", …}} with exit code 1.
 *
 * <p>The source compiles against RocketMQ 4.9.4 and 5.2.0 alike, but for {@code Pop}. Names that moved between the two (the enum
 * {@code MessageModel}) are reached through {@code var} instead of an import.
 */
public final class TernPeer {
    private TernPeer() {}

    public static void main(String[] arguments) {
        String command = arguments.length == 1 ? arguments[0] : "";
        // mqadmin prints tables, not events, so it keeps standard output.
        if (!command.equals("admin")) {
            System.setOut(System.err);
        }
        int exitCode = 0;
        try {
            var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            Options options = Options.parse(input.readLine());
            switch (command) {
                case "produce" -> Produce.run(options, input);
                case "transact" -> Transact.run(options, input);
                case "push" -> Push.run(options, input);
                case "litepull" -> LitePull.run(options, input);
                case "pull" -> Pull.run(options);
                case "reply" -> Replier.run(options, input);
                case "query" -> Query.run(options);
                case "filter" -> Filter.run(input);
                case "resume" -> Resume.run(options);
                // By its name: what it needs is missing in 4.9.4, where it is not compiled.
                case "pop" -> Class.forName("ternmq.Pop")
                        .getDeclaredMethod("run", Options.class, BufferedReader.class)
                        .invoke(null, options, input);
                case "admin" -> Admin.run(options);
                default -> throw new IllegalArgumentException(
                        "unknown command «" + command + "»: use produce, transact, push, litepull, pull, pop, reply, query, filter, resume or admin");
            }
            if (!command.equals("admin")) {
                Events.emit("done", Map.of());
            }
        } catch (Exception | Error failure) {
            failure.printStackTrace();
            Events.failure("failed", failure, Map.of());
            exitCode = 1;
        }
        // The clients leave threads behind that are no daemons.
        System.exit(exitCode);
    }
}
