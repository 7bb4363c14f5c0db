//! Tests of the renewal of leases in the background.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use idem_client::{ErrorKind, lease::Lease};
use idem_runtime::lease::Keeper;
use idem_runtime::{Error, Message, Settlement, lease::LeaseContext};
use idem_testkit::{
    in_time,
    proxy::{Cut, Proxy},
};

use crate::fixtures::{Fixture, LONG, SHORT, destination, fact, id, idem, is_new, message, until};

#[tokio::test]
async fn lease_is_renewed_while_the_handler_runs() {
    let fixture = Fixture::new().await;
    let message = message();
    let observed = Fixture::observe(&fixture);
    let idem = idem(|policy| policy.lease = SHORT);
    let processed = idem.process_leased(
        &fixture.pool,
        &message,
        async |_: LeaseContext, message: Message| {
            let started = Instant::now();
            while started.elapsed() < 2 * SHORT {
                // The lease is renewed, so no other process can acquire it during this time.
                assert!(matches!(
                    observed.acquire(&message).await,
                    Lease::InProgress { .. }
                ));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(vec![fact()])
        },
    );
    let processed = in_time(processed).await;
    assert!(is_new(&processed), "{processed:?}");
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn renewal_stops_when_the_keeper_is_dropped() {
    let fixture = Fixture::new().await;
    let message = message();
    let held = fixture.acquired(&message, SHORT).await;
    let keeper = Keeper::start(&held, &fixture.pool);
    let lost = keeper.lost().clone();
    let mut least = SHORT.as_secs_f64();
    until("the lease is renewed", async || {
        let left = fixture.left(&message).await.unwrap();
        let is_renewed = left > least + 0.1;
        least = least.min(left);
        is_renewed
    })
    .await;
    drop(keeper);
    assert_eq!(fixture.acquired_next(&message).await.attempt(), 2);
    assert!(
        !lost.is_cancelled(),
        "a lease without a keeper is not reported as lost"
    );
}

#[tokio::test]
async fn renewal_stops_when_the_handler_is_dropped() {
    let fixture = Fixture::new().await;
    let message = message();
    let idem = idem(|policy| policy.lease = SHORT);
    {
        let handler = async |_: LeaseContext, _: Message| pending().await;
        let processed = idem.process_leased(&fixture.pool, &message, handler);
        let is_leased = until("the message is leased", async || {
            fixture.left(&message).await.is_some()
        });
        tokio::select! {
            processed = processed => panic!("{processed:?}"),
            () = is_leased => {}
        }
    }
    assert_eq!(fixture.acquired_next(&message).await.attempt(), 2);
}

/// A value that sets a flag when it is dropped.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn lost_lease_drops_the_handler_and_cancels_its_token() {
    let fixture = Fixture::new().await;
    let message = message();
    let is_gone = Arc::new(AtomicBool::new(false));
    let (started, mut handlers) = tokio::sync::mpsc::channel(1);
    let gone = Gone(Arc::clone(&is_gone));
    let idem = idem(|policy| policy.lease = SHORT);
    let processed = idem.process_leased(
        &fixture.pool,
        &message,
        async move |work: LeaseContext, _: Message| {
            let _gone = gone;
            started.send(work.lost().clone()).await.unwrap();
            pending().await
        },
    );
    let taken = async {
        let lost = handlers.recv().await.unwrap();
        assert!(!lost.is_cancelled());
        // Act as if this process was paused and another process acquired the lease.
        fixture.expire(&message).await;
        let other = fixture.acquired_next(&message).await;
        lost.cancelled().await;
        other
    };
    let (processed, other) = in_time(async { tokio::join!(processed, taken) }).await;
    let error = processed.unwrap_err();
    assert!(matches!(error, Error::LeaseLost), "{error:?}");
    assert_eq!(
        (error.kind(), error.settlement()),
        (ErrorKind::NotClaimed, Settlement::RELEASE)
    );
    assert!(is_gone.load(Ordering::SeqCst));
    // The lease of the other process is still valid.
    other.complete(&fixture.observer, &[fact()]).await.unwrap();
    fixture.assert_done_once(&message).await;
}

#[tokio::test]
async fn lease_without_renewal_is_lost_when_it_expires() {
    let fixture = Fixture::new().await;
    let message = message();
    let proxy = Proxy::to(&fixture.database).await;
    proxy.cut_for_good(Cut::BeforeCommit);
    let started = Instant::now();
    let held = fixture.acquired(&message, SHORT).await;
    let keeper = Keeper::start(&held, &proxy.pool(2));
    in_time(keeper.lost().cancelled()).await;
    assert!(proxy.was_cut());
    // Renewals were retried until shortly before the end of the lease.
    assert!(
        started.elapsed() >= SHORT.mul_f64(0.9),
        "{:?}",
        started.elapsed()
    );
    // Another process can acquire the lease only after this time.
    assert_eq!(fixture.acquired_next(&message).await.attempt(), 2);
}

#[tokio::test]
async fn renewal_with_a_lost_reply_is_retried() {
    let fixture = Fixture::new().await;
    let message = message();
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        let proxy = Proxy::to(&fixture.database).await;
        let held = fixture.acquired(&message, SHORT).await;
        let keeper = Keeper::start(&held, &proxy.pool(2));
        proxy.cut_once(cut);
        until("the connection was cut", async || proxy.was_cut()).await;
        // The next renewal succeeds.
        let mut least = fixture.left(&message).await.unwrap();
        until("the lease is renewed", async || {
            let left = fixture.left(&message).await.unwrap();
            let is_renewed = left > least + 0.1;
            least = least.min(left);
            is_renewed
        })
        .await;
        assert!(!keeper.lost().is_cancelled());
        drop(keeper);
        held.give_back(&fixture.observer).await.unwrap();
    }
}

impl Fixture {
    /// Returns an observer that acquires leases in parallel with the test.
    fn observe(&self) -> Observer<'_> {
        Observer(self)
    }
}

struct Observer<'g>(&'g Fixture);

impl Observer<'_> {
    async fn acquire(&self, message: &Message) -> Lease {
        let client = self.0.pool.get().await.unwrap();
        idem_client::lease::acquire(&**client, &id(message), &destination(), LONG)
            .await
            .unwrap()
    }
}
