package main

import (
	"context"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// pushing has the options of push.
type pushing struct {
	Namesrv    string
	Group      string
	Topic      string
	Expression string
	// Expression is SQL.
	Sql       bool
	Orderly   bool
	Broadcast bool
	AccessKey string
	SecretKey string
	// How many attempts at each message fail before one succeeds.
	Failures int32
}

func push(in *input) error {
	options := pushing{Expression: "*"}
	if _, err := in.next(&options); err != nil {
		return err
	}
	model := consumer.Clustering
	if options.Broadcast {
		model = consumer.BroadCasting
	}
	list := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{options.Namesrv})),
		consumer.WithGroupName(options.Group),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(options.Orderly),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithSuspendCurrentQueueTimeMillis(100 * time.Millisecond),
	}
	if options.AccessKey != "" {
		list = append(list, consumer.WithCredentials(primitive.Credentials{
			AccessKey: options.AccessKey, SecretKey: options.SecretKey,
		}))
	}
	client, err := rocketmq.NewPushConsumer(list...)
	if err != nil {
		return err
	}
	kind := consumer.TAG
	if options.Sql {
		kind = consumer.SQL92
	}
	attempts := newCounter()
	selector := consumer.MessageSelector{Type: kind, Expression: options.Expression}
	err = client.Subscribe(options.Topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (
		consumer.ConsumeResult, error,
	) {
		for _, message := range messages {
			attempt := attempts.add(message.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex))
			tell(event{
				"event": "message", "body": message.Body, "topic": message.Topic, "msgId": message.MsgId,
				"offsetMsgId": message.OffsetMsgId, "queueId": message.Queue.QueueId,
				"queueOffset": message.QueueOffset, "tags": message.GetTags(), "keys": message.GetKeys(),
				"reconsumeTimes": message.ReconsumeTimes, "attempt": attempt, "properties": message.GetProperties(),
				"at": time.Now().UnixMilli(),
			})
			if attempt <= options.Failures {
				if options.Orderly {
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	tell(event{"event": "ready"})
	in.wait()
	return client.Shutdown()
}
