package ternmq;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** JSON lines on standard output. Any thread may call; lines never mix. */
final class Events {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private Events() {}

    static synchronized void emit(String event, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.putAll(fields);
        OUT.println(JSON.toJSONString(line, SerializerFeature.WriteMapNullValue));
        OUT.flush();
    }

    /** One event for an exception, with the broker's or client's response code where there is one. */
    static void failure(String event, Throwable failure, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>(fields);
        line.put("class", failure.getClass().getSimpleName());
        line.put("message", String.valueOf(failure.getMessage()));
        if (failure instanceof MQBrokerException refused) {
            line.put("code", refused.getResponseCode());
        } else if (failure instanceof MQClientException refused) {
            line.put("code", refused.getResponseCode());
        }
        emit(event, line);
    }

    static void message(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        // Only a broker can store a message without a body; clients read it as null.
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        line.put("body", Base64.getEncoder().encodeToString(body));
        line.put("keys", message.getKeys());
        line.put("tags", message.getTags());
        line.put("properties", message.getProperties());
        line.put("brokerName", message.getBrokerName());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("logOffset", message.getCommitLogOffset());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("msgId", message.getMsgId());
        line.put("sysFlag", message.getSysFlag());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("bornHost", message.getBornHostString());
        line.put("thread", Thread.currentThread().getName());
        emit("message", line);
    }

    static Map<String, Object> queue(MessageQueue queue) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", queue.getTopic());
        fields.put("brokerName", queue.getBrokerName());
        fields.put("queueId", queue.getQueueId());
        return fields;
    }

    static List<Map<String, Object>> queues(Collection<MessageQueue> queues) {
        return queues.stream().sorted().map(Events::queue).toList();
    }
}
