package ternmq;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.Banner;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/**
 * A Spring application that a test drives through its standard streams, as TernPeer in tests/java: JSON lines, the
 * first of which has the options ({@code namesrv}, {@code accessKey}, {@code secretKey}), the others orders.
 *
 * <p>It listens to {@code orders} (those with the tags {@code paid} and {@code sent}; the first attempt at a body that
 * begins with {@code failing} fails), to {@code steps} in order, and answers {@code questions}.
 */
@SpringBootApplication
public class SpringPeer {
    private static final long TIMEOUT_MS = 30_000;
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    static synchronized void tell(String event, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.putAll(fields);
        OUT.println(JSON.toJSONString(line));
        OUT.flush();
    }

    static void tellMessage(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        line.put("keys", message.getKeys());
        line.put("tags", message.getTags());
        line.put("properties", message.getProperties());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("msgId", message.getMsgId());
        line.put("at", System.currentTimeMillis());
        tell("message", line);
    }

    @Component
    @RocketMQMessageListener(
            topic = "orders",
            consumerGroup = "shop",
            selectorExpression = "paid || sent",
            delayLevelWhenNextConsume = 1)
    static class Orders implements RocketMQListener<MessageExt> {
        @Override
        public void onMessage(MessageExt message) {
            tellMessage(message);
            if (message.getReconsumeTimes() == 0
                    && new String(message.getBody(), StandardCharsets.UTF_8).startsWith("failing")) {
                throw new IllegalStateException("once more");
            }
        }
    }

    @Component
    @RocketMQMessageListener(topic = "steps", consumerGroup = "steppers", consumeMode = ConsumeMode.ORDERLY)
    static class Steps implements RocketMQListener<MessageExt> {
        @Override
        public void onMessage(MessageExt message) {
            tellMessage(message);
        }
    }

    @Component
    @RocketMQMessageListener(topic = "questions", consumerGroup = "answerers")
    static class Questions implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String question) {
            return "answer to " + question;
        }
    }

    /** The argument of a transaction is how its local work ends; a body that begins with «lost» is rolled back. */
    @Component
    @RocketMQTransactionListener
    static class Transactions implements RocketMQLocalTransactionListener {
        @Override
        @SuppressWarnings("rawtypes")
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object local) {
            return RocketMQLocalTransactionState.valueOf((String) local);
        }

        @Override
        @SuppressWarnings("rawtypes")
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            String body = new String((byte[]) message.getPayload(), StandardCharsets.UTF_8);
            tell("check", Map.of("body", body));
            return body.startsWith("lost")
                    ? RocketMQLocalTransactionState.ROLLBACK
                    : RocketMQLocalTransactionState.COMMIT;
        }
    }

    private static void tellResult(int index, SendResult result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("index", index);
        line.put("status", result.getSendStatus().name());
        line.put("msgId", result.getMsgId());
        line.put("queueId", result.getMessageQueue() == null ? -1 : result.getMessageQueue().getQueueId());
        tell("result", line);
    }

    private static void tellError(int index, Throwable failure) {
        tell("error", Map.of("index", index, "error", String.valueOf(failure)));
    }

    private static Message<String> message(JSONObject order, int index) {
        var builder = MessageBuilder.withPayload(order.getString("body") + "-" + index);
        if (order.containsKey("key")) {
            builder.setHeader("KEYS", order.getString("key") + "-" + index);
        }
        if (order.containsKey("properties")) {
            order.getJSONObject("properties").forEach(builder::setHeader);
        }
        return builder.build();
    }

    private static void send(RocketMQTemplate template, JSONObject order) throws InterruptedException {
        String destination = order.getString("to");
        int count = order.containsKey("count") ? order.getIntValue("count") : 1;
        String mode = order.containsKey("mode") ? order.getString("mode") : "sync";
        if (mode.equals("batch")) {
            List<Message<String>> all = new ArrayList<>();
            for (int index = 0; index < count; index++) {
                all.add(message(order, index));
            }
            tellResult(0, template.syncSend(destination, all, TIMEOUT_MS));
            return;
        }
        var open = new java.util.concurrent.CountDownLatch(mode.equals("async") ? count : 0);
        for (int number = 0; number < count; number++) {
            int index = number;
            Message<String> one = message(order, index);
            try {
                switch (mode) {
                    case "sync" -> tellResult(index, template.syncSend(destination, one, TIMEOUT_MS));
                    case "async" -> template.asyncSend(destination, one, new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            tellResult(index, result);
                            open.countDown();
                        }

                        @Override
                        public void onException(Throwable failure) {
                            tellError(index, failure);
                            open.countDown();
                        }
                    }, TIMEOUT_MS);
                    case "oneway" -> template.sendOneWay(destination, one);
                    case "ordered" -> tellResult(
                            index, template.syncSendOrderly(destination, one, "shard-" + index % 3, TIMEOUT_MS));
                    case "level" -> tellResult(
                            index, template.syncSend(destination, one, TIMEOUT_MS, order.getIntValue("level")));
                    case "deliver" -> tellResult(
                            index, template.syncSendDeliverTimeMills(destination, one, order.getLongValue("atMs")));
                    case "transaction" -> tellResult(
                            index, template.sendMessageInTransaction(destination, one, order.getString("local")));
                    case "request" -> tell("answer", Map.of(
                            "text", (String) template.sendAndReceive(destination, one, String.class, TIMEOUT_MS)));
                    default -> throw new IllegalArgumentException("unknown mode " + mode);
                }
            } catch (RuntimeException failure) {
                tellError(index, failure);
            }
        }
        open.await();
    }

    public static void main(String[] arguments) {
        System.setOut(System.err);
        int exitCode = 0;
        try {
            var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            JSONObject options = JSON.parseObject(input.readLine());
            Map<String, Object> settings = new HashMap<>();
            settings.put("rocketmq.name-server", options.getString("namesrv"));
            settings.put("rocketmq.producer.group", "spring-producers");
            settings.put("logging.level.root", "WARN");
            if (options.containsKey("accessKey")) {
                for (String side : List.of("producer", "consumer")) {
                    settings.put("rocketmq." + side + ".access-key", options.getString("accessKey"));
                    settings.put("rocketmq." + side + ".secret-key", options.getString("secretKey"));
                }
            }
            try (var context = new SpringApplicationBuilder(SpringPeer.class)
                    .bannerMode(Banner.Mode.OFF)
                    .properties(settings)
                    .run()) {
                RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
                tell("ready", Map.of());
                for (String line = input.readLine(); line != null; line = input.readLine()) {
                    send(template, JSON.parseObject(line));
                    tell("sent", Map.of());
                }
            }
            tell("done", Map.of());
        } catch (Exception | Error failure) {
            failure.printStackTrace();
            tell("failed", Map.of("error", String.valueOf(failure)));
            exitCode = 1;
        }
        System.exit(exitCode);
    }
}
