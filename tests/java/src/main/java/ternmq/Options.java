package ternmq;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The JSON object that says what a command shall do; a missing option has the default that the caller names. */
final class Options {
    private final JSONObject fields;

    private Options(JSONObject fields) {
        this.fields = fields;
    }

    static Options parse(String line) {
        if (line == null || line.isBlank()) {
            throw new IllegalArgumentException("no options: write one JSON object to standard input");
        }
        return new Options(JSON.parseObject(line));
    }

    /** What signs requests, with {@code accessKey} and {@code secretKey}; null without them. */
    RPCHook signing() {
        if (!has("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(text("accessKey"), text("secretKey")));
    }

    boolean has(String name) {
        return fields.get(name) != null;
    }

    String text(String name) {
        String value = fields.getString(name);
        if (value == null) {
            throw new IllegalArgumentException("option «" + name + "» is missing");
        }
        return value;
    }

    String text(String name, String missing) {
        return has(name) ? fields.getString(name) : missing;
    }

    int number(String name, int missing) {
        return has(name) ? fields.getIntValue(name) : missing;
    }

    long bigNumber(String name, long missing) {
        return has(name) ? fields.getLongValue(name) : missing;
    }

    boolean flag(String name, boolean missing) {
        return has(name) ? fields.getBooleanValue(name) : missing;
    }

    List<String> texts(String name) {
        return has(name) ? fields.getJSONArray(name).toJavaList(String.class) : List.of();
    }

    /** Name and value pairs, in the order of the names. */
    Map<String, String> pairs(String name) {
        Map<String, String> pairs = new TreeMap<>();
        if (has(name)) {
            fields.getJSONObject(name).forEach((key, value) -> pairs.put(key, String.valueOf(value)));
        }
        return pairs;
    }
}
