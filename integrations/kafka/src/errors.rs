//! Converts a Kafka error to the error of the effect that was to be published, according to the
//! table in `docs/relays.md`.

use idem_runtime::{PublishError, transport::TransportError};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Returns the error of the effect that was to be published.
pub(super) fn publish_error(error: KafkaError) -> PublishError {
    let kind: fn(TransportError) -> PublishError = match error.rdkafka_error_code() {
        // The error concerns the effect itself: Kafka will never accept it.
        Some(
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::InvalidTopic,
        ) => PublishError::Permanent,
        // The error concerns the topic: it does not exist, a permission on it is missing, or too
        // few of its replicas are in sync.
        Some(
            Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::TopicAuthorizationFailed
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend,
        ) => PublishError::TopicUnavailable,
        Some(
            // The error concerns this producer.
            Code::QueueFull
            | Code::PurgeQueue
            | Code::PurgeInflight
            | Code::Fatal
            | Code::Fenced
            | Code::DestroyBroker
            | Code::BrokerDestroy
            // The error concerns the connection to the broker.
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
            // The error concerns the cluster.
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
            // The idempotent producer lost its sequence: it starts a new sequence, and the effect
            // is sent again.
            | Code::OutOfOrderSequenceNumber
            | Code::UnknownProducerId
            | Code::InvalidProducerEpoch
            | Code::ProducerFenced,
        ) => PublishError::Unavailable,
        // `Canceled` means that the producer was dropped. Any other error without a code means that
        // a name contains a zero byte.
        None if error == KafkaError::Canceled => PublishError::Unavailable,
        None => PublishError::Permanent,
        // For all other errors the attempts of the effect are counted.
        Some(_) => PublishError::Rejected,
    };
    kind(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_broker_topic_and_effect_are_distinguished() {
        let of = |code| publish_error(KafkaError::MessageProduction(code));
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
