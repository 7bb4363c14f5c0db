//! Steps with an unknown result: an earlier attempt began the external call and did not record its
//! result.

use std::sync::atomic::{AtomicUsize, Ordering};

use idem_client::journal::{CallState, begin_call};
use idem_runtime::{
    HandlerError, Message,
    journal::{CallError, CallFailed, Calls, OnUnknown, UnknownCall},
};

use crate::{
    fixtures::{Fixture, destination, id, message},
    once::{Gateway, journal, state},
};

/// Makes an attempt that calls the gateway and receives no response.
async fn unheard(fixture: &Fixture, message: &Message, gateway: &Gateway) {
    let error = journal(fixture, message)
        .once("charge", &5, async |key| {
            gateway.ask(key).await?;
            Err::<usize, _>(std::io::Error::other("connection lost"))
        })
        .await
        .unwrap_err();
    assert!(matches!(error, CallFailed::Uncertain { .. }), "{error:?}");
    assert!(!HandlerError::from(error).is_terminal());
    assert_eq!(
        state(fixture, message, "charge").await,
        Some(CallState::Unknown)
    );
}

#[tokio::test]
async fn unknown_call_is_repeated_with_the_same_key() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&fixture, &message, &gateway).await;
    let response = journal(&fixture, &message)
        .once("charge", &5, |key| gateway.ask(key))
        .await;
    assert_eq!(response.unwrap(), 2);
    assert_eq!((gateway.asked(), gateway.keys()), (2, 1));
    assert_eq!(
        state(&fixture, &message, "charge").await,
        Some(CallState::Done)
    );
}

#[tokio::test]
async fn unknown_call_found_done_is_not_repeated() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&fixture, &message, &gateway).await;
    let found = OnUnknown::query(async |unheard: UnknownCall| {
        assert_eq!(unheard.attempt, 2);
        assert!(unheard.begun_at.is_some() && !unheard.idempotency_key.is_empty());
        Ok::<_, std::io::Error>(Some(1))
    });
    let response = journal(&fixture, &message)
        .once_or("charge", &5, found, |key| gateway.ask(key))
        .await;
    assert_eq!((response.unwrap(), gateway.asked()), (1, 1));
    // The result that the query found is recorded.
    assert_eq!(
        state(&fixture, &message, "charge").await,
        Some(CallState::Done)
    );
}

#[tokio::test]
async fn unknown_call_found_not_done_is_repeated() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&fixture, &message, &gateway).await;
    let found = OnUnknown::query(async |_| Ok::<_, std::io::Error>(None));
    let response = journal(&fixture, &message)
        .once_or("charge", &5, found, |key| gateway.ask(key))
        .await;
    assert_eq!((response.unwrap(), gateway.keys()), (2, 1));
}

#[tokio::test]
async fn failed_query_leaves_call_unknown_and_rejection_ends_it() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&fixture, &message, &gateway).await;
    let call = |on_unknown| {
        let journal = journal(&fixture, &message);
        let gateway = &gateway;
        async move {
            journal
                .once_or("charge", &5, on_unknown, |key| gateway.ask(key))
                .await
        }
    };
    let failing = OnUnknown::query(async |_| {
        Err::<Option<usize>, _>(std::io::Error::other("connection lost"))
    });
    assert!(matches!(
        call(failing).await,
        Err(CallFailed::Uncertain { .. })
    ));
    assert_eq!(
        state(&fixture, &message, "charge").await,
        Some(CallState::Unknown)
    );

    let rejected =
        OnUnknown::query(async |_| Err::<Option<usize>, _>(CallError::refused("stolen card")));
    assert!(matches!(
        call(rejected).await,
        Err(CallFailed::Refused { .. })
    ));
    assert_eq!(
        state(&fixture, &message, "charge").await,
        Some(CallState::Failed)
    );
    assert_eq!(gateway.asked(), 1);
}

#[tokio::test]
async fn on_unknown_fail_makes_no_call() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&fixture, &message, &gateway).await;
    for _ in 0..2 {
        let error = journal(&fixture, &message)
            .once_or("charge", &5, OnUnknown::Fail, |key| gateway.ask(key))
            .await
            .unwrap_err();
        assert!(
            matches!(
                &error,
                CallFailed::Unknown {
                    begun_at: Some(_),
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(HandlerError::from(error).is_terminal());
    }
    assert_eq!(gateway.asked(), 1);
    assert_eq!(
        state(&fixture, &message, "charge").await,
        Some(CallState::Unknown)
    );
}

#[tokio::test]
async fn on_unknown_is_not_used_for_a_new_call() {
    let fixture = Fixture::new().await;
    let message = message();
    let gateway = Gateway::default();
    let never = OnUnknown::query(async |_| -> Result<Option<usize>, CallError> {
        panic!("queried a new call")
    });
    let response = journal(&fixture, &message)
        .once_or("charge", &5, never, |key| gateway.ask(key))
        .await;
    assert_eq!(response.unwrap(), 1);
}

/// Goal: when two attempts at a step run concurrently, at most one of them finds an unknown earlier
/// call. Both return the same response.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_attempts_return_the_same_response() {
    let fixture = Fixture::new().await;
    for _ in 0..20 {
        let message = message();
        let unknown_calls = AtomicUsize::new(0);
        let gateway = Gateway::default();
        let race = || async {
            let journal = Calls::new(&fixture.pool, &id(&message), &destination());
            let unknown = OnUnknown::query(async |_| {
                unknown_calls.fetch_add(1, Ordering::SeqCst);
                Ok::<_, CallError>(None)
            });
            // A gateway that supports idempotency keys returns the same response to both calls.
            let call = async |key| gateway.ask(key).await.map(|_| 1);
            journal.once_or("charge", &5, unknown, call).await
        };
        let (one, other) = tokio::join!(race(), race());
        assert_eq!((one.unwrap(), other.unwrap()), (1, 1));
        assert!(
            unknown_calls.into_inner() <= 1,
            "the first attempt finds no earlier call"
        );
        assert_eq!(gateway.keys(), 1);
        assert_eq!(
            state(&fixture, &message, "charge").await,
            Some(CallState::Done)
        );
    }
}

#[tokio::test]
async fn begin_call_returns_new_and_then_unknown() {
    let fixture = Fixture::new().await;
    let message = message();
    let begin = async || {
        begin_call(
            &fixture.observer,
            &id(&message),
            &destination(),
            "charge",
            None,
        )
        .await
        .unwrap()
    };
    let (first, second) = (begin().await, begin().await);
    assert_eq!((first.state, first.attempt), (CallState::New, 1));
    assert_eq!((second.state, second.attempt), (CallState::Unknown, 2));
    assert_eq!(first.idempotency_key, second.idempotency_key);
    assert!(first.begun_at.is_some() && second.begun_at.is_some());
}
