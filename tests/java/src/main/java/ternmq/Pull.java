package ternmq;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Pulls each queue of a topic (or only {@code queueId}) from {@code queueOffset} until there is nothing more.
 *
 * <p>Options: {@code namesrv}, {@code group}, {@code topic} (several joined by a comma), {@code expression} or
 * {@code sql}, {@code instance}, {@code queueId}, {@code queueOffset}, {@code max} (messages a pull), {@code commit} (store the
 * position reached). Events: one {@code pulled} a reply, after its messages.
 */
final class Pull {
    private Pull() {}

    static void run(Options options) throws Exception {
        var consumer = new DefaultMQPullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setInstanceName(options.text("instance", "peer"));
        consumer.setVipChannelEnabled(options.flag("vip", false));
        consumer.setHeartbeatBrokerInterval(500);
        consumer.start();
        try {
            for (String topic : options.text("topic").split(",")) {
                for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                    if (queue.getQueueId() == options.number("queueId", queue.getQueueId())) {
                        long reached = drain(consumer, queue, options);
                        if (options.flag("commit", false)) {
                            consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, reached, false);
                        }
                    }
                }
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static long drain(DefaultMQPullConsumer consumer, MessageQueue queue, Options options) throws Exception {
        long queueOffset = options.bigNumber("queueOffset", 0);
        while (true) {
            MessageSelector wanted = options.has("sql")
                    ? MessageSelector.bySql(options.text("sql"))
                    : MessageSelector.byTag(options.text("expression", "*"));
            PullResult pulled = pullPatiently(consumer, queue, wanted, queueOffset, options);
            if (pulled.getMsgFoundList() != null) {
                pulled.getMsgFoundList().forEach(Events::message);
            }
            Map<String, Object> line = new LinkedHashMap<>(Events.queue(queue));
            line.put("status", pulled.getPullStatus().name());
            line.put("nextQueueOffset", pulled.getNextBeginOffset());
            line.put("minQueueOffset", pulled.getMinOffset());
            line.put("maxQueueOffset", pulled.getMaxOffset());
            Events.emit("pulled", line);
            queueOffset = pulled.getNextBeginOffset();
            boolean more = pulled.getPullStatus() == PullStatus.FOUND
                    || pulled.getPullStatus() == PullStatus.NO_MATCHED_MSG;
            if (!more || queueOffset >= pulled.getMaxOffset()) {
                return queueOffset;
            }
        }
    }

    /** The client asks a broker for SQL only once a heartbeat has told it the broker's version. */
    private static PullResult pullPatiently(
            DefaultMQPullConsumer consumer, MessageQueue queue, MessageSelector wanted, long queueOffset, Options options)
            throws Exception {
        for (int attempt = 1; ; attempt++) {
            try {
                return consumer.pull(queue, wanted, queueOffset, options.number("max", 32));
            } catch (MQClientException failure) {
                if (attempt == 50 || !failure.getMessage().contains("does not upgrade")) {
                    throw failure;
                }
                Thread.sleep(200);
            }
        }
    }
}
