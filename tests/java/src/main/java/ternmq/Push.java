package ternmq;

import java.io.BufferedReader;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A push consumer that tells of each message, and of each change of its queues.
 *
 * <p>Options: {@code namesrv}, {@code group}, {@code topic}, {@code accessKey} and {@code secretKey} (sign requests), {@code expression}, {@code sql} (instead of an
 * expression), {@code mode} (concurrent, orderly), {@code model} (clustering, broadcasting), {@code from} (first, last,
 * timestamp), {@code timestamp} (yyyyMMddHHmmss), {@code instance}, {@code threads}, {@code batch}, {@code pullBatch},
 * {@code maxReconsumeTimes}, {@code strategy} (averagely, circle, hash), {@code failFirst} (the first N deliveries of
 * each key are refused), {@code pop} (leave the sharing of queues to the broker, which may say POP; with
 * {@code invisibleMs}; 5.2.0 only), {@code hang} (the listener never returns), {@code trace} (to RocketMQ's trace topic),
 * and those of {@link Stop}. Events: {@code ready}, {@code allocated}, {@code message}.
 */
final class Push {
    private final Options options;
    private final Stop stop;
    private final Map<String, AtomicInteger> deliveries = new ConcurrentHashMap<>();

    private Push(Options options, Stop stop) {
        this.options = options;
        this.stop = stop;
    }

    static void run(Options options, BufferedReader input) throws Exception {
        var stop = new Stop(options, input);
        DefaultMQPushConsumer consumer = new Push(options, stop).consumer();
        consumer.start();
        try {
            Events.emit("ready", Map.of("clientId", consumer.buildMQClientId()));
            stop.await();
        } finally {
            consumer.shutdown();
        }
    }

    private DefaultMQPushConsumer consumer() throws Exception {
        var consumer = new DefaultMQPushConsumer(
                options.text("group"),
                options.signing(),
                new AllocateMessageQueueAveragely(),
                options.flag("trace", false),
                null);
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setInstanceName(options.text("instance", "peer"));
        consumer.setVipChannelEnabled(options.flag("vip", false));
        // The enum lives in another package in each version: name its class through a value.
        var model = consumer.getMessageModel();
        consumer.setMessageModel(
                Enum.valueOf(model.getDeclaringClass(), options.text("model", "clustering").toUpperCase()));
        consumer.setConsumeFromWhere(
                ConsumeFromWhere.valueOf("CONSUME_FROM_" + switch (options.text("from", "first")) {
                    case "last" -> "LAST_OFFSET";
                    case "timestamp" -> "TIMESTAMP";
                    default -> "FIRST_OFFSET";
                }));
        if (options.has("timestamp")) {
            consumer.setConsumeTimestamp(options.text("timestamp"));
        }
        int threads = options.number("threads", 4);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        consumer.setPullBatchSize(options.number("pullBatch", 32));
        consumer.setMaxReconsumeTimes(options.number("maxReconsumeTimes", -1));
        consumer.setAllocateMessageQueueStrategy(new Reporting(switch (options.text("strategy", "averagely")) {
            case "circle" -> new AllocateMessageQueueAveragelyByCircle();
            case "hash" -> new AllocateMessageQueueConsistentHash();
            default -> new AllocateMessageQueueAveragely();
        }));
        if (options.flag("pop", false)) {
            // 4.9.4 does not have these.
            var type = DefaultMQPushConsumer.class;
            type.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            type.getMethod("setPopInvisibleTime", long.class).invoke(consumer, options.bigNumber("invisibleMs", 60_000));
        }
        if (options.has("sql")) {
            consumer.subscribe(options.text("topic"), MessageSelector.bySql(options.text("sql")));
        } else {
            consumer.subscribe(options.text("topic"), options.text("expression", "*"));
        }
        if (options.text("mode", "concurrent").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, unused) -> take(messages)
                    ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, unused) -> take(messages)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        return consumer;
    }

    /** Reports the messages; false when one of them has still to fail. */
    private boolean take(List<MessageExt> messages) {
        boolean done = true;
        for (MessageExt message : messages) {
            Events.message(message);
            String key = message.getKeys() == null ? message.getMsgId() : message.getKeys();
            int delivery = deliveries.computeIfAbsent(key, unused -> new AtomicInteger()).incrementAndGet();
            done &= delivery > options.number("failFirst", 0);
        }
        if (options.flag("hang", false)) {
            LockSupport.park();
        }
        if (done) {
            stop.consumed(messages.size());
        }
        return done;
    }

    /** Passes a strategy's answers on, and tells of those that differ from the last one. */
    private static final class Reporting implements AllocateMessageQueueStrategy {
        private final AllocateMessageQueueStrategy strategy;
        private final Map<String, List<MessageQueue>> last = new TreeMap<>();

        private Reporting(AllocateMessageQueueStrategy strategy) {
            this.strategy = strategy;
        }

        @Override
        public synchronized List<MessageQueue> allocate(
                String group, String client, List<MessageQueue> queues, List<String> clients) {
            List<MessageQueue> mine = strategy.allocate(group, client, queues, clients);
            String topic = queues.get(0).getTopic();
            if (!mine.equals(last.put(topic, mine))) {
                Events.emit("allocated", Map.of("topic", topic, "queues", Events.queues(mine), "clients", clients));
            }
            return mine;
        }

        @Override
        public String getName() {
            return strategy.getName();
        }
    }
}
