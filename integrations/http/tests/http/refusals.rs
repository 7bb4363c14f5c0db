//! Tests of keys that an application claimed without the HTTP layer. No response is recorded for
//! such a key.

use idem_client::MessageId;

use crate::fixtures::{Fixture, MODES, ask, destination};

#[tokio::test]
async fn key_claimed_without_a_response_gets_409() {
    for mode in MODES {
        let mut fixture = Fixture::new(mode).await;
        let tx = fixture.observer.transaction().await.unwrap();
        let id = MessageId::text("all:k").unwrap();
        assert!(
            idem_client::try_claim(&tx, &id, &destination())
                .await
                .unwrap()
                .is_new()
        );
        tx.commit().await.unwrap();
        fixture
            .send(&ask("k"))
            .await
            .assert_problem(409, "not-recorded");
        assert_eq!(fixture.runs(), 0, "{mode:?}");
    }
}
