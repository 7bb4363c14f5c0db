//! A source of the inbox limits the bytes of the messages that it prefetches.

use std::time::Duration;

use idem_client::inbox::{InboxMessage, receive};
use idem_runtime::{Settlement, Source};
use idem_testkit::in_time;

use crate::fixtures::{Fixture, id_of};

const MIB: usize = 1024 * 1024;

async fn receive_large(fixture: &Fixture, count: usize) {
    for number in 0..count {
        let letter = InboxMessage::json(&"x".repeat(MIB)).unwrap();
        let id = id_of(&format!("m-{number}"));
        assert!(
            receive(&fixture.client, &id, &fixture.to, &letter)
                .await
                .unwrap()
        );
    }
}

/// Goal: the source does not lease more messages of a batch of 20 large messages than its limit in
/// bytes allows.
#[tokio::test(flavor = "multi_thread")]
async fn prefetched_messages_stay_within_max_bytes() {
    let fixture = Fixture::new().await;
    receive_large(&fixture, 20).await;
    // The source releases prefetched messages that have waited for a sixth of the lease, so a long
    // lease prevents releases in this test.
    let source = fixture
        .source(&fixture.db.pool(4))
        .lease(Duration::from_secs(3600));
    let mut source = source.max_bytes(4 * MIB + 1024);
    let first = in_time(source.next()).await.unwrap().unwrap();
    assert_eq!(fixture.count("state = 'l'").await, 4);
    drop(first);
    in_time(source.close()).await;
}

/// Goal: the source releases messages above the limit. They are redelivered before later messages.
#[tokio::test(flavor = "multi_thread")]
async fn max_bytes_keeps_the_inbox_order() {
    for max_bytes in [1, 2 * MIB + 1024] {
        let fixture = Fixture::new().await;
        receive_large(&fixture, 8).await;
        let mut source = fixture.source(&fixture.db.pool(4)).max_bytes(max_bytes);
        let mut ids = Vec::new();
        for _ in 0..8 {
            let delivery = in_time(source.next()).await.unwrap().unwrap();
            ids.push(delivery.message().message_id().unwrap().to_owned());
            delivery.settle(Settlement::Acknowledge).await.unwrap();
        }
        let expected: Vec<_> = (0..8).map(|number| format!("m-{number}")).collect();
        assert_eq!(ids, expected, "with {max_bytes} bytes");
        in_time(source.close()).await;
    }
}
