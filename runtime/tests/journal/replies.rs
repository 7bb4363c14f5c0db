//! The reply to a COMMIT of the journal is lost.

use std::sync::Arc;

use deadpool_postgres::Hook;
use idem_client::journal::CallState;
use idem_runtime::journal::{CallError, CallFailed, Calls, OnUnknown};
use idem_testkit::proxy::{Cut, Proxy};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::{
    fixtures::{Fixture, LONG, destination, id, message, until},
    once::{Gateway, begin, state},
};

/// Goal: a failure that was recorded under the lease is recorded once, also if its commit is
/// ambiguous.
#[tokio::test]
async fn failure_is_recorded_once_after_an_ambiguous_commit() {
    let fixture = Fixture::new().await;
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        let proxy = Proxy::to(&fixture.database).await;
        let message = message();
        let held = fixture.acquired(&message, LONG).await;
        let refused = Calls::of(&held, &proxy.pool(1))
            .once("charge", &5, async |_| {
                proxy.cut_once(cut);
                Err::<Value, _>(CallError::refused("no such card"))
            })
            .await
            .unwrap_err();
        assert!(proxy.was_cut());
        assert!(
            matches!(&refused, CallFailed::Refused { error, .. } if error == "no such card"),
            "{refused:?}"
        );
        assert_eq!(
            state(&fixture, &message, "charge").await,
            Some(CallState::Failed)
        );
    }
}

/// Goal: if the reply to the COMMIT of a new step is lost, the step is still new for this process,
/// which has made no call. Otherwise a call that was never made would wait for a person.
#[tokio::test]
async fn new_call_is_made_after_an_ambiguous_commit_of_its_begin() {
    let fixture = Fixture::new().await;
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        for is_leased in [false, true] {
            let proxy = Proxy::to(&fixture.database).await;
            let pool = proxy.pool(1);
            let message = message();
            let calls = if is_leased {
                Calls::of(&fixture.acquired(&message, LONG).await, &pool)
            } else {
                Calls::new(&pool, &id(&message), &destination())
            };
            proxy.cut_once(cut);
            let gateway = Gateway::default();
            let response = calls
                .once_or("charge", &5, OnUnknown::Fail, |key| gateway.ask(key))
                .await;
            assert!(proxy.was_cut());
            assert_eq!(response.unwrap(), 1, "{cut:?}, leased: {is_leased}");
            assert_eq!(
                state(&fixture, &message, "charge").await,
                Some(CallState::Done)
            );
        }
    }
}

/// Goal: if the first try is rolled back and another process begins the step, the step is unknown:
/// the other process may be making the call. Without a lease nothing else prevents two calls.
#[tokio::test]
async fn call_of_a_rival_after_a_rollback_is_unknown() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::to(&fixture.database).await;
    let message = message();
    let gateway = Gateway::default();
    // The second connection waits until the rival has begun.
    let connections = Arc::new(Semaphore::new(1));
    let wait = Arc::clone(&connections);
    let pool = proxy.pool_builder().max_size(1);
    let pool = pool.post_create(Hook::async_fn(move |_, _| {
        let wait = Arc::clone(&wait);
        Box::pin(async move {
            wait.acquire().await.unwrap().forget();
            Ok(())
        })
    }));
    proxy.cut_once(Cut::BeforeCommit);
    let calls = Calls::new(&pool.build().unwrap(), &id(&message), &destination());
    let once = calls.once_or("charge", &5, OnUnknown::Fail, |key| gateway.ask(key));
    let (result, ()) = tokio::join!(once, async {
        until("the connection is lost", async || proxy.was_cut()).await;
        begin(&fixture, &message, CallState::New).await;
        connections.add_permits(1);
    });
    assert!(
        matches!(result, Err(CallFailed::Unknown { .. })),
        "{result:?}"
    );
    assert_eq!(gateway.asked(), 0);
}

/// Goal: a step that another attempt has begun stays unknown if the reply to COMMIT is lost.
#[tokio::test]
async fn unknown_call_stays_unknown_after_an_ambiguous_commit() {
    let fixture = Fixture::new().await;
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        let proxy = Proxy::to(&fixture.database).await;
        let message = message();
        let held = fixture.acquired(&message, LONG).await;
        begin(&fixture, &message, CallState::New).await;
        proxy.cut_once(cut);
        let gateway = Gateway::default();
        let unknown = Calls::of(&held, &proxy.pool(1))
            .once_or("charge", &5, OnUnknown::Fail, |key| gateway.ask(key))
            .await
            .unwrap_err();
        assert!(proxy.was_cut());
        assert!(matches!(unknown, CallFailed::Unknown { .. }), "{unknown:?}");
        assert_eq!(gateway.asked(), 0);
    }
}

#[tokio::test]
async fn response_is_recorded_once_after_an_ambiguous_commit() {
    let fixture = Fixture::new().await;
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        let proxy = Proxy::to(&fixture.database).await;
        let message = message();
        let gateway = Gateway::default();
        let journal = Calls::new(&proxy.pool(1), &id(&message), &destination());
        let response = journal
            .once("charge", &5, async |key| {
                proxy.cut_once(cut);
                gateway.ask(key).await
            })
            .await;
        assert!(proxy.was_cut());
        assert_eq!(response.unwrap(), 1);
        assert_eq!(
            state(&fixture, &message, "charge").await,
            Some(CallState::Done)
        );
        assert_eq!(gateway.asked(), 1);
    }
}
