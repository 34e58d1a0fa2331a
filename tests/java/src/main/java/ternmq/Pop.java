package ternmq;

import java.io.BufferedReader;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * Pops, acks and changes one by one, as RocketMQ's proxies do: through the client's API below its consumers, which
 * never pop in order by themselves. 5.2.0 only: 4.9.4 has no such classes, and is compiled without this one.
 *
 * <p>Options: {@code namesrv}, {@code address} and {@code broker} (its name), {@code group}, {@code topic}. Each
 * further line of standard input is an order with a field {@code do}, and has one event of the same name for an answer:
 * {@code pop} ({@code order}, {@code attempt}, {@code count}, {@code invisibleMs}, {@code pollMs}, {@code last}),
 * {@code ack} ({@code handle}), {@code batchAck} ({@code handles}), {@code change} ({@code handle},
 * {@code invisibleMs}). Events: {@code ready} and these, or {@code error}.
 */
final class Pop {
    private static final long TIMEOUT_MS = 10_000;

    private final Options options;
    private final MQClientAPIImpl api;

    private Pop(Options options, MQClientAPIImpl api) {
        this.options = options;
        this.api = api;
    }

    static void run(Options options, BufferedReader input) throws Exception {
        // A producer is the smallest thing that has a client inside.
        var producer = new DefaultMQProducer("pop-orders");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setVipChannelEnabled(false);
        producer.start();
        try {
            var pop = new Pop(options, producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl());
            Events.emit("ready", Map.of());
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                Options order = Options.parse(line);
                try {
                    Events.emit(order.text("do"), pop.carryOut(order));
                } catch (Exception failure) {
                    Events.failure("error", failure.getCause() == null ? failure : failure.getCause(), Map.of());
                }
            }
        } finally {
            producer.shutdown();
        }
    }

    private Map<String, Object> carryOut(Options order) throws Exception {
        return switch (order.text("do")) {
            case "pop" -> pop(order);
            case "ack" -> ack(order);
            case "batchAck" -> batchAck(order);
            case "change" -> change(order);
            default -> throw new IllegalArgumentException("unknown order «" + order.text("do") + "»");
        };
    }

    private Map<String, Object> pop(Options order) throws Exception {
        var header = new PopMessageRequestHeader();
        header.setConsumerGroup(options.text("group"));
        header.setTopic(options.text("topic"));
        header.setQueueId(-1);
        header.setMaxMsgNums(order.number("count", 32));
        header.setInvisibleTime(order.bigNumber("invisibleMs", 60_000));
        header.setPollTime(order.bigNumber("pollMs", 0));
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(order.flag("last", false) ? 1 : 0);
        header.setOrder(order.flag("order", false));
        header.setAttemptId(order.text("attempt", null));
        var answer = new CompletableFuture<PopResult>();
        long timeoutMs = header.getPollTime() + TIMEOUT_MS;
        api.popMessageAsync(options.text("broker"), options.text("address"), header, timeoutMs, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                answer.completeExceptionally(failure);
            }
        });
        PopResult result = answer.get();
        List<MessageExt> found = result.getMsgFoundList() == null ? List.of() : result.getMsgFoundList();
        return Map.of(
                "status", result.getPopStatus().name(),
                "rest", result.getRestNum(),
                "messages", found.stream().map(Pop::told).toList());
    }

    private static Map<String, Object> told(MessageExt message) {
        String handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        fields.put("topic", message.getTopic());
        fields.put("times", message.getReconsumeTimes());
        fields.put("retry", ExtraInfoUtil.getRetry(ExtraInfoUtil.split(handle)));
        fields.put("handle", handle);
        return fields;
    }

    private Map<String, Object> ack(Options order) throws Exception {
        String[] handle = ExtraInfoUtil.split(order.text("handle"));
        var header = new AckMessageRequestHeader();
        header.setConsumerGroup(options.text("group"));
        header.setTopic(ExtraInfoUtil.getRealTopic(handle, options.text("topic"), options.text("group")));
        header.setQueueId(ExtraInfoUtil.getQueueId(handle));
        header.setOffset(ExtraInfoUtil.getQueueOffset(handle));
        header.setExtraInfo(order.text("handle"));
        var answer = new Answer();
        api.ackMessageAsync(options.text("address"), TIMEOUT_MS, answer, header);
        return answer.told();
    }

    private Map<String, Object> batchAck(Options order) throws Exception {
        var answer = new Answer();
        api.batchAckMessageAsync(
                options.text("address"),
                TIMEOUT_MS,
                answer,
                options.text("topic"),
                options.text("group"),
                order.texts("handles"));
        return answer.told();
    }

    private Map<String, Object> change(Options order) throws Exception {
        String[] handle = ExtraInfoUtil.split(order.text("handle"));
        var header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(options.text("group"));
        header.setTopic(ExtraInfoUtil.getRealTopic(handle, options.text("topic"), options.text("group")));
        header.setQueueId(ExtraInfoUtil.getQueueId(handle));
        header.setOffset(ExtraInfoUtil.getQueueOffset(handle));
        header.setExtraInfo(order.text("handle"));
        header.setInvisibleTime(order.bigNumber("invisibleMs", 60_000));
        var answer = new Answer();
        api.changeInvisibleTimeAsync(options.text("broker"), options.text("address"), header, TIMEOUT_MS, answer);
        return answer.told();
    }

    /** What a broker says to an ack or a change. */
    private static final class Answer implements AckCallback {
        private final CompletableFuture<AckResult> result = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult answer) {
            result.complete(answer);
        }

        @Override
        public void onException(Throwable failure) {
            result.completeExceptionally(failure);
        }

        private Map<String, Object> told() throws Exception {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("status", result.get().getStatus().name());
            fields.put("handle", result.get().getExtraInfo());
            return fields;
        }
    }
}
