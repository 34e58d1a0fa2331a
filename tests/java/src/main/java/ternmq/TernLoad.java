package ternmq;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Load for the benchmark: {@code java ternmq.TernLoad send|consume|latency}, options as one JSON line on standard input.
 *
 * <p>{@code send}: {@code threads} threads share one producer, so one connection, and send synchronously (with
 * {@code batch} &gt; 1, that many messages at a time) for {@code warmUpS} and then {@code seconds}, or until
 * {@code count} messages are sent. An event {@code warm} marks the begin of what counts, {@code measured} its end, so
 * that whoever drives this can read the broker's CPU time at both. With {@code transactional}, each message is a
 * transaction that its local part commits at once. {@code accessKey} and {@code secretKey} sign all others.
 *
 * <p>{@code consume}: a push consumer with the client's default settings takes {@code count} waiting messages; its rate
 * runs from the first message to the last. With {@code pop} it leaves the sharing of queues to the broker (5.2.0 only),
 * which the driver has told to say POP. Events {@code first} and {@code measured}.
 *
 * <p>{@code latency}: {@code threads} threads send {@code rate} messages a second together, each at its appointed time,
 * and a push consumer of the same process takes them. A latency runs from the appointed time to the listener, so a
 * message that has to wait for the one before it to be sent is not let off. Events {@code warm} and {@code measured}.
 */
public final class TernLoad {
    private TernLoad() {}

    public static void main(String[] arguments) {
        System.setOut(System.err);
        int exitCode = 0;
        try {
            var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            Options options = Options.parse(input.readLine());
            String command = arguments.length == 1 ? arguments[0] : "";
            switch (command) {
                case "send" -> send(options);
                case "consume" -> consume(options);
                case "latency" -> latency(options);
                default -> throw new IllegalArgumentException(
                        "unknown command «" + command + "»: use send, consume or latency");
            }
        } catch (Exception | Error failure) {
            failure.printStackTrace();
            Events.failure("failed", failure, Map.of());
            exitCode = 1;
        }
        System.exit(exitCode);
    }

    private static void send(Options options) throws Exception {
        boolean transactional = options.flag("transactional", false);
        DefaultMQProducer producer = transactional
                ? committing() : new DefaultMQProducer("ternmq-load", options.signing());
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setDefaultTopicQueueNums(8);
        producer.setVipChannelEnabled(false);
        producer.start();
        // The first send creates the topic; without it, all threads would try to at once.
        producer.send(new Message(options.text("topic"), new byte[] {'0'}));

        var messagesLeft = new AtomicLong(options.bigNumber("count", Long.MAX_VALUE));
        long warmUpNanos = TimeUnit.SECONDS.toNanos(options.bigNumber("warmUpS", 0));
        long nanos = TimeUnit.SECONDS.toNanos(options.bigNumber("seconds", 3600));
        long begin = System.nanoTime() + warmUpNanos;
        List<Sender> senders = new ArrayList<>();
        for (int index = 0; index < options.number("threads", 1); index++) {
            senders.add(new Sender(producer, options, messagesLeft, begin, begin + nanos));
        }
        senders.forEach(Thread::start);
        TimeUnit.NANOSECONDS.sleep(begin - System.nanoTime());
        Events.emit("warm", Map.of());
        for (Sender sender : senders) {
            sender.join();
        }
        long end = Math.min(System.nanoTime(), begin + nanos);
        long[] latencies = senders.stream().flatMapToLong(Sender::latencies).sorted().toArray();
        int batch = options.number("batch", 1);
        long failed = senders.stream().mapToLong(sender -> sender.failed).sum();
        Map<String, Object> line = rate((long) latencies.length * batch, end - begin);
        line.put("failed", failed);
        senders.stream().map(sender -> sender.failure).filter(failure -> failure != null).findFirst()
                .ifPresent(failure -> line.put("failure", failure));
        line.put("p50Us", percentile(latencies, 0.50));
        line.put("p99Us", percentile(latencies, 0.99));
        line.put("maxUs", percentile(latencies, 1.0));
        Events.emit("measured", line);
        producer.shutdown();
    }

    /** A producer whose local transactions commit, now and when they are checked. */
    private static TransactionMQProducer committing() {
        var producer = new TransactionMQProducer("ternmq-load-transactions");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object unused) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        return producer;
    }

    /** One thread of load; keeps the latency of each call that began and ended within the time that counts. */
    private static final class Sender extends Thread {
        private final DefaultMQProducer producer;
        private final Options options;
        private final AtomicLong messagesLeft;
        private final long begin;
        private final long end;
        private long[] nanos = new long[1024];
        private int calls;
        private long failed;
        private String failure;

        private Sender(DefaultMQProducer producer, Options options, AtomicLong messagesLeft, long begin, long end) {
            this.producer = producer;
            this.options = options;
            this.messagesLeft = messagesLeft;
            this.begin = begin;
            this.end = end;
        }

        private LongStream latencies() {
            return Arrays.stream(nanos, 0, calls);
        }

        @Override
        public void run() {
            String topic = options.text("topic");
            int batch = options.number("batch", 1);
            byte[] body = new byte[options.number("bodyBytes", 128)];
            Arrays.fill(body, (byte) 'x');
            long before = System.nanoTime();
            while (before < end && messagesLeft.addAndGet(-batch) >= 0) {
                try {
                    if (producer instanceof TransactionMQProducer transactional) {
                        transactional.sendMessageInTransaction(new Message(topic, body), null);
                    } else if (batch == 1) {
                        producer.send(new Message(topic, body));
                    } else {
                        List<Message> messages = new ArrayList<>(batch);
                        for (int index = 0; index < batch; index++) {
                            messages.add(new Message(topic, body));
                        }
                        producer.send(messages);
                    }
                } catch (Exception refused) {
                    failed++;
                    failure = String.valueOf(refused);
                    messagesLeft.addAndGet(batch);
                    before = System.nanoTime();
                    continue;
                }
                long after = System.nanoTime();
                if (before >= begin && after <= end) {
                    if (calls == nanos.length) {
                        nanos = Arrays.copyOf(nanos, 2 * calls);
                    }
                    nanos[calls++] = after - before;
                }
                before = after;
            }
        }
    }

    private static void consume(Options options) throws Exception {
        long count = options.bigNumber("count", 1_000_000);
        var taken = new AtomicLong();
        var firstNanos = new AtomicLong();
        var lastNanos = new AtomicLong();
        var all = new CountDownLatch(1);
        var consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (options.flag("pop", false)) {
            // 4.9.4 does not have it.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, unused) -> {
            if (firstNanos.compareAndSet(0, System.nanoTime())) {
                Events.emit("first", Map.of());
            }
            if (taken.addAndGet(messages.size()) >= count && lastNanos.compareAndSet(0, System.nanoTime())) {
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!all.await(options.bigNumber("timeoutS", 300), TimeUnit.SECONDS)) {
            throw new IllegalStateException("only " + taken.get() + " of " + count + " messages came in time");
        }
        Events.emit("measured", rate(count, lastNanos.get() - firstNanos.get()));
        consumer.shutdown();
    }

    private static void latency(Options options) throws Exception {
        String topic = options.text("topic");
        int threads = options.number("threads", 4);
        long everyNanos = TimeUnit.SECONDS.toNanos(threads) / options.number("rate", 1000);
        long warmUpNanos = TimeUnit.SECONDS.toNanos(options.bigNumber("warmUpS", 0));
        long nanos = TimeUnit.SECONDS.toNanos(options.bigNumber("seconds", 30));
        var producer = new DefaultMQProducer("ternmq-load");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setDefaultTopicQueueNums(8);
        producer.setVipChannelEnabled(false);
        producer.start();
        // Each broker makes the topic at its first message; a consumer that starts before would see one of them later.
        for (int index = 0; index < 32; index++) {
            producer.send(new Message(topic, new byte[Long.BYTES]));
        }

        var latencies = new ConcurrentLinkedQueue<Long>();
        var begin = new AtomicLong(Long.MAX_VALUE);
        var consumer = new DefaultMQPushConsumer("ternmq-latency");
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        var ready = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, unused) -> {
            long now = System.nanoTime();
            ready.countDown();
            for (var message : messages) {
                long appointed = ByteBuffer.wrap(message.getBody()).getLong();
                if (appointed >= begin.get()) {
                    latencies.add(now - appointed);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!ready.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the first message did not come within a minute");
        }

        long start = System.nanoTime();
        begin.set(start + warmUpNanos);
        var sent = new AtomicLong();
        List<Thread> senders = new ArrayList<>();
        for (int index = 0; index < threads; index++) {
            long first = start + everyNanos * index / threads;
            senders.add(new Thread(() -> {
                for (long at = first; at < start + warmUpNanos + nanos; at += everyNanos) {
                    LockSupport.parkNanos(at - System.nanoTime());
                    try {
                        producer.send(new Message(topic, ByteBuffer.allocate(128).putLong(at).array()));
                    } catch (Exception refused) {
                        throw new IllegalStateException(refused);
                    }
                    if (at >= begin.get()) {
                        sent.incrementAndGet();
                    }
                }
            }));
        }
        senders.forEach(Thread::start);
        TimeUnit.NANOSECONDS.sleep(begin.get() - System.nanoTime());
        Events.emit("warm", Map.of());
        for (Thread sender : senders) {
            sender.join();
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (latencies.size() < sent.get()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("only " + latencies.size() + " of " + sent + " messages came in time");
            }
            TimeUnit.MILLISECONDS.sleep(10);
        }
        long[] sorted = latencies.stream().mapToLong(Long::longValue).sorted().toArray();
        Map<String, Object> line = rate(sorted.length, nanos);
        line.put("p50Us", percentile(sorted, 0.50));
        line.put("p99Us", percentile(sorted, 0.99));
        line.put("maxUs", percentile(sorted, 1.0));
        Events.emit("measured", line);
        consumer.shutdown();
        producer.shutdown();
    }

    private static Map<String, Object> rate(long messages, long nanos) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("messages", messages);
        line.put("seconds", nanos / 1e9);
        line.put("rate", messages * 1e9 / nanos);
        return line;
    }

    /** In microseconds; {@code sorted} is in nanoseconds. */
    private static long percentile(long[] sorted, double share) {
        return sorted.length == 0 ? -1 : sorted[(int) Math.min(sorted.length - 1L, (long) (share * sorted.length))] / 1000;
    }
}
