//! What an error of Kafka says about the effect that was to be published: the table in
//! `docs/relays.md`.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::PublishError;

impl From<KafkaError> for PublishError {
    fn from(error: KafkaError) -> Self {
        match error.rdkafka_error_code() {
            Some(code) if is_permanent(code) => Self::Permanent(error.into()),
            Some(code) if is_unavailable(code) => Self::Unavailable(error.into()),
            Some(code) if is_of_the_topic(code) => Self::TopicUnavailable(error.into()),
            // Its producer is gone, or a name holds a zero byte.
            None if error == KafkaError::Canceled => Self::Unavailable(error.into()),
            None => Self::Permanent(error.into()),
            // Everything unknown: its attempts are counted.
            Some(_) => Self::Rejected(error.into()),
        }
    }
}

/// The effect itself is what Kafka will not take.
fn is_permanent(code: Code) -> bool {
    matches!(
        code,
        Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::InvalidTopic
    )
}

/// The topic does not exist, a permission on it is missing, or too few of its replicas are in sync.
fn is_of_the_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::TopicAuthorizationFailed
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
    )
}

/// The broker, the way to it, or this producer.
fn is_unavailable(code: Code) -> bool {
    matches!(
        code,
        // This side of the wire.
        Code::QueueFull
            | Code::PurgeQueue
            | Code::PurgeInflight
            | Code::Fatal
            | Code::Fenced
            | Code::DestroyBroker
            | Code::BrokerDestroy
            // The way.
            | Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::SSL
            | Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::NetworkException
            | Code::MessageTimedOut
            | Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::TimedOutQueue
            // The cluster.
            | Code::BrokerNotAvailable
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::ReplicaNotAvailable
            | Code::PreferredLeaderNotAvailable
            | Code::ClusterAuthorizationFailed
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::KafkaStorageError
            | Code::ThrottlingQuotaExceeded
            // The idempotent producer lost its place: it takes a new one, and the effect is sent
            // again.
            | Code::OutOfOrderSequenceNumber
            | Code::UnknownProducerId
            | Code::InvalidProducerEpoch
            | Code::ProducerFenced
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_the_effect_and_the_rest_are_told_apart() {
        let of = |code| PublishError::from(KafkaError::MessageProduction(code));
        for code in [
            Code::QueueFull,
            Code::BrokerTransportFailure,
            Code::MessageTimedOut,
            Code::ClusterAuthorizationFailed,
            Code::SaslAuthenticationFailed,
        ] {
            assert!(matches!(of(code), PublishError::Unavailable(_)), "{code}");
        }
        for code in [
            Code::UnknownTopic,
            Code::UnknownTopicOrPartition,
            Code::TopicAuthorizationFailed,
            Code::NotEnoughReplicas,
        ] {
            assert!(
                matches!(of(code), PublishError::TopicUnavailable(_)),
                "{code}"
            );
        }
        for code in [
            Code::MessageSizeTooLarge,
            Code::InvalidRecord,
            Code::InvalidTopic,
        ] {
            assert!(matches!(of(code), PublishError::Permanent(_)), "{code}");
        }
        for code in [Code::PolicyViolation, Code::Unknown] {
            assert!(matches!(of(code), PublishError::Rejected(_)), "{code}");
        }
    }
}
