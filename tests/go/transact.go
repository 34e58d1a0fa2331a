package main

import (
	"context"
	"fmt"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnknowState,
}

// listener answers as it was told. Orders are carried out one after the other, so there is one local state at a time.
type listener struct {
	local primitive.LocalTransactionState
	check primitive.LocalTransactionState
}

func (one *listener) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return one.local
}

func (one *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	tell(event{
		"event": "check", "body": string(message.Body), "topic": message.Topic, "msgId": message.MsgId,
		"transactionId": message.TransactionId, "properties": message.GetProperties(),
	})
	return one.check
}

func transact(in *input) error {
	options := producing{Group: "go-producers", Check: "COMMIT_MESSAGE"}
	if _, err := in.next(&options); err != nil {
		return err
	}
	answers := &listener{check: states[options.Check]}
	client, err := rocketmq.NewTransactionProducer(answers, options.list()...)
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	tell(event{"event": "ready"})
	for {
		var order sending
		more, err := in.next(&order)
		if err != nil {
			return err
		}
		if !more {
			return client.Shutdown()
		}
		local, known := states[order.Local]
		if !known {
			return fmt.Errorf("unknown local state %q; use COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW", order.Local)
		}
		answers.local = local
		for index, message := range order.messages() {
			result, err := client.SendMessageInTransaction(context.Background(), message)
			if err != nil {
				tellResult(index, nil, err)
			} else {
				tellResult(index, result.SendResult, nil)
			}
		}
		tell(event{"event": "sent"})
	}
}
