//! Tests of commits with an unknown result.

use std::sync::atomic::{AtomicUsize, Ordering};

use idem_client::ErrorKind;
use idem_runtime::{
    Error, Idem, Processed, Settlement,
    policy::{Store, Style},
};
use idem_testkit::proxy::{Cut, Proxy};

use crate::fixtures::{Fixture, idem, message, work};

#[tokio::test]
async fn committed_message_with_a_lost_reply_is_a_duplicate() {
    let fixture = Fixture::new().await;
    // If a handler takes effect again for a committed message, this index makes its insert fail.
    fixture
        .observer
        .batch_execute("CREATE UNIQUE INDEX ON work (id)")
        .await
        .unwrap();
    for style in [Style::Eager, Style::Reactive] {
        let proxy = Proxy::to(&fixture.database).await;
        let message = message();
        proxy.cut_once(Cut::AfterCommit);
        let processed = idem(|policy| policy.style = style)
            .process(&proxy.pool(1), &message, work)
            .await
            .unwrap();
        assert!(proxy.was_cut());
        assert!(
            matches!(processed, Processed::Duplicate { .. }),
            "{style:?}: {processed:?}"
        );
        assert_eq!(processed.settlement(), Settlement::Acknowledge);
        fixture.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn lost_commit_is_repeated() {
    let fixture = Fixture::new().await;
    for style in [Style::Eager, Style::Reactive] {
        let proxy = Proxy::to(&fixture.database).await;
        let message = message();
        proxy.cut_once(Cut::BeforeCommit);
        let processed = idem(|policy| policy.style = style)
            .process(&proxy.pool(1), &message, work)
            .await
            .unwrap();
        assert!(proxy.was_cut());
        assert!(
            matches!(processed, Processed::New { .. }),
            "{style:?}: {processed:?}"
        );
        fixture.assert_done_once(&message).await;
    }
}

#[tokio::test]
async fn unreachable_database_leaves_the_commit_ambiguous() {
    let fixture = Fixture::new().await;
    for style in [Style::Eager, Style::Reactive] {
        for (cut, is_done) in [(Cut::AfterCommit, true), (Cut::BeforeCommit, false)] {
            let proxy = Proxy::to(&fixture.database).await;
            let message = message();
            proxy.cut_for_good(cut);
            let error = idem(|policy| policy.style = style)
                .process(&proxy.pool(1), &message, work)
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AmbiguousCommit, "{error:?}");
            assert_eq!(error.settlement(), Settlement::RELEASE);
            // The next delivery finds out whether the commit took effect.
            let processed = Idem::new()
                .process(&fixture.pool, &message, work)
                .await
                .unwrap();
            assert_eq!(
                matches!(processed, Processed::Duplicate { .. }),
                is_done,
                "{processed:?}"
            );
            fixture.assert_done_once(&message).await;
        }
    }
}

#[tokio::test]
async fn ambiguous_commit_of_the_last_attempt_is_not_a_failure() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::to(&fixture.database).await;
    let message = message();
    proxy.cut_once(Cut::AfterCommit);
    let error = idem(|policy| policy.retry.max_attempts = 1)
        .process(&proxy.pool(1), &message, work)
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Client(idem_client::Error::AmbiguousCommit(_))),
        "{error:?}"
    );
    assert_eq!(error.settlement(), Settlement::RELEASE);
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn ambiguous_commit_without_a_claim_is_not_retried() {
    let fixture = Fixture::new().await;
    let proxy = Proxy::to(&fixture.database).await;
    let (message, calls) = (message(), AtomicUsize::new(0));
    proxy.cut_once(Cut::AfterCommit);
    let error = idem(|policy| policy.store = Store::Memory)
        .process(&proxy.pool(1), &message, |tx, message| {
            calls.fetch_add(1, Ordering::SeqCst);
            work(tx, message)
        })
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Client(idem_client::Error::AmbiguousCommit(_))),
        "{error:?}"
    );
    assert_eq!((calls.into_inner(), fixture.work(&message).await), (1, 1));
}

#[tokio::test]
async fn claims_resolve_an_ambiguous_batch() {
    let fixture = Fixture::new().await;
    for cut in [Cut::AfterCommit, Cut::BeforeCommit] {
        let proxy = Proxy::to(&fixture.database).await;
        let messages = [message(), message(), message()];
        proxy.cut_once(cut);
        for result in Idem::new()
            .process_batch(&proxy.pool(1), &messages, work)
            .await
        {
            let processed = result.unwrap();
            let is_duplicate = matches!(processed, Processed::Duplicate { .. });
            assert_eq!(is_duplicate, cut == Cut::AfterCommit, "{processed:?}");
        }
        for message in &messages {
            fixture.assert_done_once(message).await;
        }

        let proxy = Proxy::to(&fixture.database).await;
        let messages = [message(), message(), message()];
        proxy.cut_for_good(cut);
        for result in Idem::new()
            .process_batch(&proxy.pool(1), &messages, work)
            .await
        {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::AmbiguousCommit);
        }
    }
}
