//! If the response of a step is recorded, the step does not call the external system again.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use idem_client::{
    ErrorKind, MessageId,
    journal::{CallState, begin_call, calls},
};
use idem_runtime::{
    HandlerError, Idem, Message, Processed,
    journal::{CallError, CallFailed, Calls},
    lease::LeaseContext,
};
use serde_json::{Value, json};

use crate::fixtures::{Fixture, destination, fact, id, is_new, message};

/// An external system that counts its calls.
#[derive(Default)]
pub struct Gateway {
    asked: AtomicUsize,
    keys: Mutex<HashSet<String>>,
}

impl Gateway {
    pub async fn ask(&self, key: String) -> Result<usize, std::io::Error> {
        self.keys.lock().unwrap().insert(key);
        Ok(self.asked.fetch_add(1, Ordering::SeqCst) + 1)
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub fn keys(&self) -> usize {
        self.keys.lock().unwrap().len()
    }
}

pub fn journal(fixture: &Fixture, message: &Message) -> Calls {
    Calls::new(&fixture.pool, &id(message), &destination())
}

pub async fn state(fixture: &Fixture, message: &Message, step: &str) -> Option<CallState> {
    let all = calls(&fixture.observer, &id(message), &destination())
        .await
        .unwrap();
    all.iter()
        .find(|call| call.step == step)
        .map(|call| call.state)
}

/// Begins the step `charge` in another process, and commits.
pub async fn begin(fixture: &Fixture, message: &Message, expected: CallState) {
    let (id, destination, request) = (id(message), destination(), json!(5));
    let begun = begin_call(
        &fixture.observer,
        &id,
        &destination,
        "charge",
        Some(&request),
    )
    .await;
    assert_eq!(begun.unwrap().state, expected);
}

#[tokio::test]
async fn recorded_response_is_returned_without_a_call() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    for _ in 0..3 {
        let response = journal(&fixture, &message)
            .once("charge", &5, |key| gateway.ask(key))
            .await;
        assert_eq!(response.unwrap(), 1);
    }
    assert_eq!(gateway.asked(), 1);
    // Another step or another message has a different idempotency key.
    let another = journal(&fixture, &message)
        .once("refund", &5, |key| gateway.ask(key))
        .await;
    assert_eq!(another.unwrap(), 2);
    let other = crate::fixtures::message();
    let other = journal(&fixture, &other)
        .once("charge", &5, |key| gateway.ask(key))
        .await;
    assert_eq!((other.unwrap(), gateway.keys()), (3, 3));

    let all = calls(&fixture.observer, &id(&message), &destination())
        .await
        .unwrap();
    let mut steps: Vec<_> = all
        .iter()
        .map(|call| (call.step.as_str(), call.state, &call.response))
        .collect();
    steps.sort_by_key(|(step, ..)| *step);
    assert_eq!(
        steps,
        [
            ("charge", CallState::Done, &Some(json!(1))),
            ("refund", CallState::Done, &Some(json!(2)))
        ]
    );
    assert!(
        all.iter()
            .all(|call| call.ended_at >= call.begun_at && call.attempt == 1)
    );
}

#[tokio::test]
async fn empty_response_is_recorded() {
    let fixture = Fixture::new().await;
    let message = message();
    let calls = AtomicUsize::new(0);
    for _ in 0..2 {
        let nothing: () = journal(&fixture, &message)
            .once("mail", &json!({"to": "a"}), async |_| {
                calls.fetch_add(1, Ordering::SeqCst);
                Ok::<_, CallError>(())
            })
            .await
            .unwrap();
        assert_eq!(nothing, ());
    }
    assert_eq!(calls.into_inner(), 1);
}

#[tokio::test]
async fn other_request_for_the_same_step_fails() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    journal(&fixture, &message)
        .once("charge", &5, |key| gateway.ask(key))
        .await
        .unwrap();
    let error = journal(&fixture, &message)
        .once("charge", &6, |key| gateway.ask(key))
        .await
        .unwrap_err();
    let CallFailed::Journal { error, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(
        error.sqlstate().map(|state| state.code()),
        Some("23000"),
        "{error}"
    );
    assert_eq!(gateway.asked(), 1);
}

#[tokio::test]
async fn rejected_call_fails_permanently() {
    let fixture = Fixture::new().await;
    let message = message();
    let rejected = journal(&fixture, &message)
        .once("charge", &5, async |_| {
            Err::<Value, _>(CallError::refused("no such card"))
        })
        .await
        .unwrap_err();
    assert!(
        matches!(&rejected, CallFailed::Refused { error, .. } if error == "no such card"),
        "{rejected:?}"
    );
    assert_eq!(
        state(&fixture, &message, "charge").await,
        Some(CallState::Failed)
    );
    let gateway = Gateway::default();
    let again = journal(&fixture, &message)
        .once("charge", &5, |key| gateway.ask(key))
        .await
        .unwrap_err();
    assert!(
        matches!(&again, CallFailed::Refused { error, .. } if error == "no such card"),
        "{again:?}"
    );
    assert_eq!(gateway.asked(), 0);
    // The error is terminal, so a handler that returns it is not retried.
    assert!(HandlerError::from(again).is_terminal());
}

/// Makes a call with this result twice. Each time the call must fail with this reason, and it must
/// be made once.
async fn assert_not_storable<T>(fixture: &Fixture, result: T, why: &str)
where
    T: Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let message = message();
    let made = AtomicUsize::new(0);
    for _ in 0..2 {
        let failed = journal(fixture, &message)
            .once("charge", &5, async |_| {
                made.fetch_add(1, Ordering::SeqCst);
                Ok::<_, CallError>(result.clone())
            })
            .await
            .unwrap_err();
        assert!(
            matches!(&failed, CallFailed::Refused { error, .. } if error.contains(why)),
            "{failed:?}"
        );
    }
    assert_eq!(made.into_inner(), 1);
    assert_eq!(
        state(fixture, &message, "charge").await,
        Some(CallState::Failed)
    );
}

#[tokio::test]
async fn call_whose_result_cannot_be_stored_is_not_repeated() {
    let fixture = Fixture::new().await;
    // JSON has no NaN: it becomes null, which is no number.
    assert_not_storable(&fixture, f64::NAN, "expected f64").await;
    let no_text = std::collections::HashMap::from([(vec![1_u8], 1)]);
    assert_not_storable(&fixture, no_text, "key must be a string").await;
    assert_not_storable(&fixture, "x".repeat(64 << 20), "idem.max_payload").await;
}

#[tokio::test]
async fn result_with_a_zero_byte_is_recorded() {
    let fixture = Fixture::new().await;
    let (message, asked) = (message(), AtomicUsize::new(0));
    for _ in 0..2 {
        let result = journal(&fixture, &message)
            .once("charge", &5, async |_| {
                asked.fetch_add(1, Ordering::SeqCst);
                Ok::<_, CallError>("a\0b".to_owned())
            })
            .await;
        assert_eq!(result.unwrap(), "a\0b");
    }
    assert_eq!(asked.into_inner(), 1);
}

#[tokio::test]
async fn call_without_effect_is_repeated_as_new() {
    let fixture = Fixture::new().await;
    let message = message();
    let error = journal(&fixture, &message)
        .once("charge", &5, async |_| {
            Err::<usize, _>(CallError::not_done("no connection"))
        })
        .await
        .unwrap_err();
    assert!(matches!(error, CallFailed::NotDone { .. }), "{error:?}");
    assert!(!HandlerError::from(error).is_terminal());
    assert_eq!(
        state(&fixture, &message, "charge").await,
        Some(CallState::New)
    );
    let gateway = Gateway::default();
    let response = journal(&fixture, &message)
        .once_or(
            "charge",
            &5,
            idem_runtime::journal::OnUnknown::Fail,
            |key| gateway.ask(key),
        )
        .await;
    assert_eq!(response.unwrap(), 1);
}

#[tokio::test]
async fn handler_calls_once_over_several_attempts() {
    let fixture = Fixture::new().await;
    fixture.attempts(5).await;
    let message = message();
    let gateway = Gateway::default();
    let idem = Idem::new();
    for attempt in 1..=3 {
        let processed = idem.process_leased(
            &fixture.pool,
            &message,
            async |work: LeaseContext, _: Message| {
                let receipt = work
                    .calls()
                    .once("charge", &5, |key| gateway.ask(key))
                    .await?;
                assert_eq!(receipt, 1);
                match attempt {
                    3 => Ok(vec![fact()]),
                    _ => Err("after the call".into()),
                }
            },
        );
        let processed = processed.await;
        assert_eq!(is_new(&processed), attempt == 3, "{processed:?}");
    }
    assert_eq!(gateway.asked(), 1);
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn rejected_call_makes_a_dead_letter() {
    let fixture = Fixture::new().await;
    let message = message();
    let buried = Idem::new()
        .process_leased(
            &fixture.pool,
            &message,
            async |work: LeaseContext, _: Message| {
                let rejected = async |_| Err::<(), _>(CallError::refused("no such card"));
                work.calls().once("charge", &5, rejected).await?;
                Ok(vec![])
            },
        )
        .await
        .unwrap();
    assert!(
        matches!(&buried, Processed::Buried { reason } if reason.contains("no such card")),
        "{buried:?}"
    );
}

#[tokio::test]
async fn invalid_step_name_fails() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    for step in ["", &"x".repeat(256)] {
        let error = journal(&fixture, &message)
            .once(step, &5, |key| gateway.ask(key))
            .await
            .unwrap_err();
        assert!(
            matches!(
                &error,
                CallFailed::Journal { error, .. } if error.kind() == ErrorKind::Invalid
            ),
            "{error:?}"
        );
    }
    assert_eq!(gateway.asked(), 0);
    let unknown = MessageId::text("unknown").unwrap();
    assert_eq!(
        calls(&fixture.observer, &unknown, &destination())
            .await
            .unwrap(),
        []
    );
}
