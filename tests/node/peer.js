// The Node client ali-ons, driven by a test (V1). One process has a producer and a consumer, and writes JSON lines, like
// TernPeer in tests/java. The first line of the standard input has the options; each further line is an order to send.
// The end of the input ends it.
//
// Options: namesrv, group, topic, expression, sql, failures (attempts at each message that fail), broadcast, accessKey,
// secretKey; without a group there is no consumer.
// Orders: topic, body, count, tags, key, shards, delayLevel, deliverAtMs, properties. Bodies are numbered.
'use strict';

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

function tell(event) {
  process.stdout.write(`${JSON.stringify(event)}\n`);
}

const logger = {
  debug() {},
  info() {},
  warn: (...words) => console.error(...words),
  error: (...words) => console.error(...words),
};

function connection(options) {
  return {
    nameSrv: options.namesrv,
    // Without a name server, it would ask this for an address.
    onsAddr: null,
    httpclient: {},
    logger,
    accessKey: options.accessKey,
    secretKey: options.secretKey,
  };
}

function message(order, number) {
  const one = new Message(order.topic, order.tags || '', `${order.body}-${number}`);
  if (order.key) one.keys = [ `${order.key}-${number}` ];
  // The client treats queue 0 as no queue: the keys of a test lead to others.
  if (order.shards) one.shardingKey = order.shards[number % order.shards.length];
  if (order.delayLevel) one.delayTimeLevel = order.delayLevel;
  if (order.deliverAtMs) one.setStartDeliverTime(order.deliverAtMs);
  Object.assign(one.properties, order.properties);
  return one;
}

async function send(producer, order) {
  for (let number = 0; number < (order.count || 1); number++) {
    try {
      const result = await producer.send(message(order, number));
      tell({
        event: 'result', index: number, status: result.sendStatus, msgId: result.msgId,
        queueId: Number(result.messageQueue.queueId), queueOffset: result.queueOffset,
      });
    } catch (error) {
      tell({ event: 'error', index: number, error: error.message, code: error.code });
    }
  }
  tell({ event: 'sent' });
}

function consume(options) {
  const consumer = new Consumer({
    ...connection(options),
    consumerGroup: options.group,
    isBroadcast: options.broadcast,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    // A stop waits for pulls that the broker holds.
    brokerSuspendMaxTimeMillis: 2000,
  });
  consumer.on('error', error => console.error(error));
  const attempts = new Map();
  const expression = options.sql ? { expressionType: 'SQL92', subString: options.expression } : options.expression;
  consumer.subscribe(options.topic, expression || '*', async one => {
    const attempt = (attempts.get(one.body.toString()) || 0) + 1;
    attempts.set(one.body.toString(), attempt);
    tell({
      event: 'message', body: one.body.toString('base64'), topic: one.topic, msgId: one.msgId, queueId: one.queueId,
      queueOffset: one.queueOffset, tags: one.tags, keys: one.keys, reconsumeTimes: one.reconsumeTimes, attempt,
      properties: one.properties, at: Date.now(),
    });
    return attempt <= (options.failures || 0) ? Consumer.ACTION_RETRY : undefined;
  });
  return consumer;
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const options = JSON.parse((await lines.next()).value);
  const producer = new Producer({ ...connection(options), producerGroup: 'node-producers' });
  producer.on('error', error => console.error(error));
  await producer.ready();
  const consumer = options.group ? consume(options) : null;
  if (consumer) await consumer.ready();
  tell({ event: 'ready' });
  for await (const line of lines) await send(producer, JSON.parse(line));
  if (consumer) await consumer.persistConsumerOffset();
  tell({ event: 'done' });
}

// The client leaves timers and connections behind.
main().then(() => process.exit(0), error => {
  tell({ event: 'failed', error: String(error && error.stack) });
  process.exit(1);
});
