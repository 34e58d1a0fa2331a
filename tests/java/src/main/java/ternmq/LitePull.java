package ternmq;

import java.io.BufferedReader;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A lite-pull consumer, subscribed or (option {@code assign}) with all queues of the topic assigned by hand.
 *
 * <p>Options: {@code namesrv}, {@code group}, {@code topic}, {@code expression}, {@code instance}, {@code from}
 * (first, last), {@code assign}, {@code seek} (assigned queues only: a queue offset, or −1 for the end),
 * {@code autoCommit}, and those of {@link Stop}. Events: {@code ready}, {@code message}, and at the end one
 * {@code committed} a queue, as the broker knows it.
 */
final class LitePull {
    private LitePull() {}

    static void run(Options options, BufferedReader input) throws Exception {
        var stop = new Stop(options, input);
        var consumer = new DefaultLitePullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setInstanceName(options.text("instance", "peer"));
        consumer.setVipChannelEnabled(options.flag("vip", false));
        consumer.setAutoCommit(options.flag("autoCommit", false));
        consumer.setConsumeFromWhere(options.text("from", "first").equals("last")
                ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
                : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        String topic = options.text("topic");
        if (!options.flag("assign", false)) {
            consumer.subscribe(topic, options.text("expression", "*"));
        }
        consumer.start();
        try {
            if (options.flag("assign", false)) {
                assignPatiently(consumer, options);
            }
            Events.emit("ready", Map.of("clientId", consumer.buildMQClientId()));
            while (!stop.isAsked()) {
                List<MessageExt> messages = consumer.poll(200);
                messages.forEach(Events::message);
                stop.consumed(messages.size());
            }
            consumer.commitSync();
            for (MessageQueue queue : consumer.fetchMessageQueues(topic)) {
                Map<String, Object> line = new LinkedHashMap<>(Events.queue(queue));
                line.put("queueOffset", consumer.committed(queue));
                Events.emit("committed", line);
            }
        } finally {
            consumer.shutdown();
        }
    }

    /** The client of 5.2.0 now and then loses the first connection that it makes to a broker, and makes another. */
    private static void assignPatiently(DefaultLitePullConsumer consumer, Options options) throws Exception {
        for (int attempt = 1; ; attempt++) {
            try {
                assign(consumer, options);
                return;
            } catch (MQClientException failure) {
                if (attempt == 3) {
                    throw failure;
                }
            }
        }
    }

    private static void assign(DefaultLitePullConsumer consumer, Options options) throws Exception {
        Collection<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(options.text("topic")));
        consumer.assign(queues);
        if (options.has("seek")) {
            long queueOffset = options.bigNumber("seek", 0);
            for (MessageQueue queue : queues) {
                if (queueOffset < 0) {
                    consumer.seekToEnd(queue);
                } else {
                    consumer.seek(queue, queueOffset);
                }
            }
        }
    }
}
