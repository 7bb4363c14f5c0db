//! A step that an earlier attempt began and never heard of.

use std::sync::atomic::{AtomicUsize, Ordering};

use idem_client::{
    HandlerError, Message,
    journal::{CallError, CallFailed, CallState, Calls, OnUnknown, Unheard, begin_call},
};

use crate::{
    ground::{Ground, destination, id, message},
    once::{Gateway, journal, state},
};

/// An attempt that asks, and hears nothing.
async fn unheard(ground: &Ground, message: &Message, gateway: &Gateway) {
    let error = journal(ground, message)
        .once("charge", &5, async |key| {
            gateway.ask(key).await?;
            Err::<usize, _>(std::io::Error::other("the line is dead"))
        })
        .await
        .unwrap_err();
    assert!(matches!(error, CallFailed::Unheard { .. }), "{error:?}");
    assert!(!HandlerError::from(error).is_terminal());
    assert_eq!(
        state(ground, message, "charge").await,
        Some(CallState::Unknown)
    );
}

#[tokio::test]
async fn it_is_asked_again_under_the_same_key() {
    let ground = Ground::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&ground, &message, &gateway).await;
    let answer = journal(&ground, &message)
        .once("charge", &5, |key| gateway.ask(key))
        .await;
    assert_eq!(answer.unwrap(), 2);
    assert_eq!((gateway.asked(), gateway.keys()), (2, 1));
    assert_eq!(
        state(&ground, &message, "charge").await,
        Some(CallState::Done)
    );
}

#[tokio::test]
async fn it_is_looked_up_and_what_was_done_is_not_asked_again() {
    let ground = Ground::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&ground, &message, &gateway).await;
    let found = OnUnknown::query(async |unheard: Unheard| {
        assert_eq!(unheard.attempt, 2);
        assert!(unheard.begun_at.is_some() && !unheard.idempotency_key.is_empty());
        Ok::<_, std::io::Error>(Some(1))
    });
    let answer = journal(&ground, &message)
        .once_or("charge", &5, found, |key| gateway.ask(key))
        .await;
    assert_eq!((answer.unwrap(), gateway.asked()), (1, 1));
    // And is recorded.
    assert_eq!(
        state(&ground, &message, "charge").await,
        Some(CallState::Done)
    );
}

#[tokio::test]
async fn it_is_looked_up_and_what_was_not_done_is_asked() {
    let ground = Ground::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&ground, &message, &gateway).await;
    let found = OnUnknown::query(async |_| Ok::<_, std::io::Error>(None));
    let answer = journal(&ground, &message)
        .once_or("charge", &5, found, |key| gateway.ask(key))
        .await;
    assert_eq!((answer.unwrap(), gateway.keys()), (2, 1));
}

#[tokio::test]
async fn a_query_that_fails_leaves_it_unknown_unless_it_says_more() {
    let ground = Ground::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&ground, &message, &gateway).await;
    let ask = |on_unknown| {
        let journal = journal(&ground, &message);
        let gateway = &gateway;
        async move {
            journal
                .once_or("charge", &5, on_unknown, |key| gateway.ask(key))
                .await
        }
    };
    let dead = OnUnknown::query(async |_| {
        Err::<Option<usize>, _>(std::io::Error::other("the line is dead"))
    });
    assert!(matches!(ask(dead).await, Err(CallFailed::Unheard { .. })));
    assert_eq!(
        state(&ground, &message, "charge").await,
        Some(CallState::Unknown)
    );

    let refused = OnUnknown::query(async |_| Err::<Option<usize>, _>(CallError::refused("stolen")));
    assert!(matches!(
        ask(refused).await,
        Err(CallFailed::Refused { .. })
    ));
    assert_eq!(
        state(&ground, &message, "charge").await,
        Some(CallState::Failed)
    );
    assert_eq!(gateway.asked(), 1);
}

#[tokio::test]
async fn nobody_is_asked_when_it_is_to_fail() {
    let ground = Ground::new().await;
    let message = message();
    let gateway = Gateway::default();
    unheard(&ground, &message, &gateway).await;
    for _ in 0..2 {
        let error = journal(&ground, &message)
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
        state(&ground, &message, "charge").await,
        Some(CallState::Unknown)
    );
}

#[tokio::test]
async fn what_to_do_about_the_unknown_is_not_asked_of_what_is_new() {
    let ground = Ground::new().await;
    let message = message();
    let gateway = Gateway::default();
    let never =
        OnUnknown::query(async |_| -> Result<Option<usize>, CallError> { panic!("it is new") });
    let answer = journal(&ground, &message)
        .once_or("charge", &5, never, |key| gateway.ask(key))
        .await;
    assert_eq!(answer.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_race_for_a_step_one_is_told_it_is_new_and_the_answer_is_one() {
    let ground = Ground::new().await;
    for _ in 0..20 {
        let message = message();
        let news = AtomicUsize::new(0);
        let gateway = Gateway::default();
        let race = || async {
            let journal = Calls::new(&ground.pool, &id(&message), &destination());
            let unknown = OnUnknown::query(async |_| {
                news.fetch_add(1, Ordering::SeqCst);
                Ok::<_, CallError>(None)
            });
            // A gateway that honours keys answers both alike.
            let ask = async |key| gateway.ask(key).await.map(|_| 1);
            journal.once_or("charge", &5, unknown, ask).await
        };
        let (one, other) = tokio::join!(race(), race());
        assert_eq!((one.unwrap(), other.unwrap()), (1, 1));
        assert!(news.into_inner() <= 1, "one of them is the first");
        assert_eq!(gateway.keys(), 1);
        assert_eq!(
            state(&ground, &message, "charge").await,
            Some(CallState::Done)
        );
    }
}

#[tokio::test]
async fn the_bare_call_tells_the_same() {
    let ground = Ground::new().await;
    let message = message();
    let begin = async || {
        begin_call(
            &ground.observer,
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
