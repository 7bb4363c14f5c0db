//! Callers of one service share no keys.

use crate::ground::{Ground, MODES, ask};

/// Invariant: a tenant never sees what was recorded for another one, whatever key it sends.
#[tokio::test]
async fn tenants_with_the_same_key_get_their_own_responses() {
    for mode in MODES {
        let ground = Ground::of_tenants(mode).await;
        let (first, second) = (ask("k").with("x-tenant", "first"), ask("k").with("x-tenant", "second"));
        let own = ground.send(&first).await;
        own.assert_run(201, 1);
        let other = ground.send(&second).await;
        assert!(
            !other.is_replayed(),
            "{mode:?}: the second tenant got the first one's response: {}",
            other.body
        );
        other.assert_run(201, 2);
        ground.send(&first).await.assert_replay_of(&own);
        ground.send(&second).await.assert_replay_of(&other);
    }
}
