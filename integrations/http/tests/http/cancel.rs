//! A request has its complete effect or no effect, at whichever await point its future is dropped.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use axum::body::Body;
use tower::ServiceExt;

use crate::fixtures::{Fixture, Mode, ask, layer};

/// Polls a future up to `times` times. Returns `None` and drops the future if it is not ready by
/// then.
async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn request_dropped_at_any_await_has_full_effect_or_none() {
    let fixture = Fixture::new(Mode::Transaction).await;
    let (mut done, mut undone) = (0, 0);
    // Replies of the server that arrive together wake the future only once. So on a busy machine,
    // one round may miss an await point.
    for round in 1..=20 {
        let seen = drop_at_every_await(&fixture, round).await;
        (done, undone) = (done + seen.0, undone + seen.1);
        if done > 0 && undone >= 2 {
            break;
        }
    }
    assert!(done > 0 && undone >= 2, "{done} done, {undone} undone");
}

/// Drops a request at each of its await points. Returns the number of requests that took effect,
/// and the number of requests that did not.
async fn drop_at_every_await(fixture: &Fixture, round: usize) -> (i64, i64) {
    let (mut done, mut undone) = (0, 0);
    for polls in 1.. {
        let key = format!("round-{round}-polls-{polls}");
        // The pool has one connection, so the next request uses the connection of the dropped
        // request.
        let router = fixture
            .app
            .router(layer(fixture.mode, fixture.database.pool(1)));
        let response = poll_times(
            router
                .clone()
                .oneshot(ask(&key).to::<Body>(fixture.server.address)),
            polls,
        )
        .await;
        let next = router
            .oneshot(ask(&format!("{key}-next")).to::<Body>(fixture.server.address))
            .await
            .unwrap();
        assert_eq!(next.status(), 201, "after {polls}");
        fixture.until_quiet().await;
        let claimed = fixture
            .count(&format!(
                "SELECT count(*) FROM idem.inbox WHERE id = 'all:{key}'"
            ))
            .await;
        assert_eq!(fixture.work(&key).await, 2 * claimed, "after {polls}");
        if let Some(response) = response {
            assert_eq!((response.unwrap().status().as_u16(), claimed), (201, 1));
            break;
        }
        done += claimed;
        undone += 1 - claimed;
        let again = fixture.send_until_settled(&ask(&key)).await;
        assert_eq!(
            (again.status.as_u16(), again.is_replayed()),
            (201, claimed == 1),
            "after {polls}"
        );
        assert_eq!(fixture.work(&key).await, 2);
    }
    (done, undone)
}
