//! Renewal in the background.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use idem_client::{
    Error, ErrorKind, Message, Settlement,
    lease::{Lease, Work},
};

use crate::{
    ground::{Ground, LONG, SHORT, destination, fact, id, idem, is_new, message, until},
    proxy::{Cut, Proxy},
    support::in_time,
};

#[tokio::test]
async fn a_handler_that_takes_long_keeps_its_lease_until_it_has_ended() {
    let ground = Ground::new().await;
    let message = message();
    let observed = Ground::observe(&ground);
    let idem = idem(|rule| rule.lease(SHORT));
    let processed =
        idem.process_leased(&ground.pool, &message, async |_: Work, message: Message| {
            let started = Instant::now();
            while started.elapsed() < 2 * SHORT {
                // Nobody else gets it in all this time.
                assert!(matches!(
                    observed.acquire(&message).await,
                    Lease::InProgress { .. }
                ));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(vec![fact()])
        });
    let processed = in_time(processed).await;
    assert!(is_new(&processed), "{processed:?}");
    ground.assert_done_once(&message).await;
}

#[tokio::test]
async fn renewal_ends_with_the_keeper() {
    let ground = Ground::new().await;
    let message = message();
    let held = ground.acquired(&message, SHORT).await;
    let keeper = held.keep(&ground.pool);
    let lost = keeper.lost().clone();
    let mut least = SHORT.as_secs_f64();
    until("it is renewed", async || {
        let left = ground.left(&message).await.unwrap();
        let is_renewed = left > least + 0.1;
        least = least.min(left);
        is_renewed
    })
    .await;
    drop(keeper);
    assert_eq!(ground.acquired_next(&message).await.attempt(), 2);
    assert!(!lost.is_cancelled(), "to end is not to lose");
}

#[tokio::test]
async fn a_handler_that_is_dropped_has_its_lease_renewed_no_more() {
    let ground = Ground::new().await;
    let message = message();
    let idem = idem(|rule| rule.lease(SHORT));
    {
        let handler = async |_: Work, _: Message| pending().await;
        let processed = idem.process_leased(&ground.pool, &message, handler);
        let is_leased = until("it is leased", async || {
            ground.left(&message).await.is_some()
        });
        tokio::select! {
            processed = processed => panic!("{processed:?}"),
            () = is_leased => {}
        }
    }
    assert_eq!(ground.acquired_next(&message).await.attempt(), 2);
}

/// Sets a flag when it goes.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_handler_whose_lease_is_lost_is_dropped_and_what_it_spawned_is_told() {
    let ground = Ground::new().await;
    let message = message();
    let is_gone = Arc::new(AtomicBool::new(false));
    let (started, mut works) = tokio::sync::mpsc::channel(1);
    let gone = Gone(Arc::clone(&is_gone));
    let idem = idem(|rule| rule.lease(SHORT));
    let processed = idem.process_leased(
        &ground.pool,
        &message,
        async move |work: Work, _: Message| {
            let _gone = gone;
            started.send(work.lost().clone()).await.unwrap();
            pending().await
        },
    );
    let taken = async {
        let lost = works.recv().await.unwrap();
        assert!(!lost.is_cancelled());
        // It was paused, say, and somebody else came.
        ground.expire(&message).await;
        let other = ground.acquired_next(&message).await;
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
    // The other's lease is as it was.
    other.complete(&ground.observer, &[fact()]).await.unwrap();
    ground.assert_done_once(&message).await;
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_is_lost_when_it_ends_and_not_before() {
    let ground = Ground::new().await;
    let message = message();
    let proxy = Proxy::to(&ground.database).await;
    proxy.cut_for_good(Cut::BeforeCommit);
    let started = Instant::now();
    let held = ground.acquired(&message, SHORT).await;
    let keeper = held.keep(&proxy.pool(2));
    in_time(keeper.lost().cancelled()).await;
    assert!(proxy.was_cut());
    // Not while there was hope.
    assert!(
        started.elapsed() >= SHORT.mul_f64(0.9),
        "{:?}",
        started.elapsed()
    );
    // And nobody else could have had it before.
    assert_eq!(ground.acquired_next(&message).await.attempt(), 2);
}

#[tokio::test]
async fn a_lost_answer_to_a_renewal_does_no_harm() {
    let ground = Ground::new().await;
    let message = message();
    for cut in [Cut::BeforeCommit, Cut::AfterCommit] {
        let proxy = Proxy::to(&ground.database).await;
        let held = ground.acquired(&message, SHORT).await;
        let keeper = held.keep(&proxy.pool(2));
        proxy.cut_once(cut);
        until("the line was cut", async || proxy.was_cut()).await;
        // Renewed again by the next attempt.
        let mut least = ground.left(&message).await.unwrap();
        until("it is renewed", async || {
            let left = ground.left(&message).await.unwrap();
            let is_renewed = left > least + 0.1;
            least = least.min(left);
            is_renewed
        })
        .await;
        assert!(!keeper.lost().is_cancelled());
        drop(keeper);
        held.give_back(&ground.observer).await.unwrap();
    }
}

impl Ground {
    /// Somebody who may ask for leases beside a test's other work.
    fn observe(&self) -> Observer<'_> {
        Observer(self)
    }
}

struct Observer<'g>(&'g Ground);

impl Observer<'_> {
    async fn acquire(&self, message: &Message) -> Lease {
        let client = self.0.pool.get().await.unwrap();
        idem_client::lease::acquire(&**client, &id(message), &destination(), LONG)
            .await
            .unwrap()
    }
}
