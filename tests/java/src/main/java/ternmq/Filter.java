package ternmq;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;

/**
 * Asks RocketMQ's own SQL filter what it makes of expressions.
 *
 * <p>Takes no options. Each further line of standard input is a case: {@code {"expression": "a > 5", "messages":
 * [{"a": "7"}]}}. Events: one {@code filtered} a case, with {@code said}: null for an expression that is refused, else
 * for each message {@code "true"}, {@code "false"}, {@code "null"} or {@code "error"}.
 */
final class Filter {
    private Filter() {}

    static void run(BufferedReader input) throws Exception {
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject one = JSON.parseObject(line);
            Events.emit("filtered", java.util.Collections.singletonMap("said", said(one)));
        }
    }

    private static List<String> said(JSONObject one) {
        Expression filter;
        try {
            filter = FilterFactory.INSTANCE.get("SQL92").compile(one.getString("expression"));
        } catch (MQFilterException refused) {
            return null;
        }
        List<String> answers = new ArrayList<>();
        for (Object message : one.getJSONArray("messages")) {
            answers.add(said(filter, (JSONObject) message));
        }
        return answers;
    }

    private static String said(Expression filter, JSONObject properties) {
        try {
            return String.valueOf(filter.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            }));
        } catch (Exception failed) {
            return "error";
        }
    }
}
