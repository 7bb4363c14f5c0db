//! Publishes the effects.

use std::time::Duration;

use anyhow::Result;
use idem_runtime::{Relay, terminated};

use super::wiring::{self, BrokerPublisher};
use crate::range::live::{
    business::RELAY_ROLE,
    post::{Post, RELAY},
};

/// The lease of a partition. After a kill of its process, a partition is not published until this
/// time has passed.
const LEASE: Duration = Duration::from_secs(3);

pub async fn run(post: &Post) -> Result<()> {
    let publisher = BrokerPublisher::new(post.broker, &post.broker_url);
    let pool = wiring::pool(post, RELAY_ROLE, 4)?;
    let summary = Relay::new(pool, publisher)
        .name(RELAY)
        .lease(LEASE)
        .run(terminated())
        .await?;
    eprintln!("{summary:?}");
    Ok(())
}
