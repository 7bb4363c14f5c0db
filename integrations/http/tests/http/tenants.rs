//! Each caller of a service has its own keys.

use http::StatusCode;

use crate::fixtures::{Fixture, MODES, Server, ask, layer};

/// Invariant: a tenant never gets a response that was recorded for another tenant. This holds for
/// any key that the tenant sends.
#[tokio::test]
async fn tenants_with_the_same_key_get_their_own_responses() {
    for mode in MODES {
        let fixture = Fixture::of_tenants(mode).await;
        let (first, second) = (
            ask("k").with("x-tenant", "first"),
            ask("k").with("x-tenant", "second"),
        );
        let own = fixture.send(&first).await;
        own.assert_run(201, 1);
        let other = fixture.send(&second).await;
        assert!(
            !other.is_replayed(),
            "{mode:?}: the second tenant got the response of the first: {}",
            other.body
        );
        other.assert_run(201, 2);
        fixture.send(&first).await.assert_replay_of(&own);
        fixture.send(&second).await.assert_replay_of(&other);
    }
}

/// Invariant: a caller of a layer without tenants never gets a response that was recorded for a
/// tenant. This holds for any key that the caller sends.
#[tokio::test]
async fn layers_with_different_scopes_share_no_keys() {
    for mode in MODES {
        let fixture = Fixture::of_tenants(mode).await;
        let shared = layer(mode, fixture.database.pool(8));
        let shared = Server::start(fixture.app.router(shared)).await;
        for (tenant, key) in [("first", "5:first:k"), ("first", "by:5:first:k")] {
            let own = fixture.send(&ask("k").with("x-tenant", tenant)).await;
            let other = fixture.send_to(shared.address, &ask(key).body("k")).await;
            assert_eq!(
                (own.status, other.status),
                (StatusCode::CREATED, StatusCode::CREATED)
            );
            assert!(
                !other.is_replayed(),
                "{mode:?}: key {key:?} got the response of tenant {tenant:?}: {}",
                other.body
            );
        }
    }
}
