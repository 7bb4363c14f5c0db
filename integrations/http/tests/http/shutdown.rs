//! At a shutdown, the process waits for requests with a lease whose client has disconnected.

use std::time::Duration;

use idem_testkit::{DEADLINE, in_time};

use crate::{
    failures::leave,
    fixtures::{Fixture, Mode, ask},
};

/// Goal: after a client has disconnected, a shutdown of the process waits until the handler of its
/// request has ended and the response is recorded.
#[tokio::test]
async fn shutdown_waits_until_leased_requests_are_recorded() {
    let mut running = None;
    let fixture = Fixture::with(Mode::Lease, |layer| {
        running = Some(layer.running());
        layer
    })
    .await;
    let running = running.unwrap();
    leave(&fixture, &ask("gone")).await;
    assert_eq!(running.count(), 1, "the running request is not counted");
    // The handler runs longer than this grace period, so one request is left.
    assert_eq!(running.ended(Duration::from_millis(100)).await, 1);
    fixture.app.gate.add_permits(1);
    assert_eq!(in_time(running.ended(2 * DEADLINE)).await, 0);
    assert_eq!((fixture.claims().await, fixture.work("gone").await), (1, 2));
}
