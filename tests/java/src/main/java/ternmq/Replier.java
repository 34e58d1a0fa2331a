package ternmq;

import java.io.BufferedReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Answers each request to a topic with its own body after {@code re: }, until standard input ends.
 *
 * <p>Options: {@code namesrv}, {@code group}, {@code topic}. Events: {@code ready}, {@code replied} (with the
 * {@code status} of the reply's send).
 */
final class Replier {
    private Replier() {}

    static void run(Options options, BufferedReader input) throws Exception {
        var producer = new DefaultMQProducer(options.text("group") + "-replies");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName("replier");
        var consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setInstanceName("replier");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, unused) -> {
            for (MessageExt request : messages) {
                answer(producer, request);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.start();
        consumer.start();
        try {
            Events.emit("ready", Map.of());
            new Stop(options, input).await();
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private static void answer(DefaultMQProducer producer, MessageExt request) {
        try {
            byte[] prefix = "re: ".getBytes(StandardCharsets.UTF_8);
            byte[] body = new byte[prefix.length + request.getBody().length];
            System.arraycopy(prefix, 0, body, 0, prefix.length);
            System.arraycopy(request.getBody(), 0, body, prefix.length, request.getBody().length);
            Message reply = MessageUtil.createReplyMessage(request, body);
            SendStatus status = producer.send(reply, 3_000).getSendStatus();
            Events.emit("replied", Map.of("status", status.name()));
        } catch (Exception failure) {
            Events.failure("error", failure, Map.of());
        }
    }
}
