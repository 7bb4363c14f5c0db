//! The faults. A fault is injected, held for some seconds, and healed. The campaign injects the
//! next fault when messages are handled again. During a fault, processes are also killed and rings
//! rotate.

mod environment;
mod hold;
mod network;
mod poison;
mod servers;

use anyhow::Result;
use idem_testkit::proxy::network::Fault as Network;
use rand::rngs::StdRng;

use crate::{named::named, site::Site};

named! {
    /// The kinds of faults.
    Kind {
        BrokerCrash = "broker killed and restarted",
        PrimaryCrash = "primary killed and restarted",
        StandbyCrash = "standby killed and restarted",
        Promotion = "standby promoted, old primary rebuilt",
        ClockJump = "wall clock jumped and set back",
        FullDisk = "disk of the primary full",
        NetworkReset = "connections reset",
        NetworkStall = "network stalled",
        NetworkHalfOpen = "connections half open",
        RightsRevoked = "privilege on a table revoked",
        TableAway = "table missing",
        TopicsAway = "bindings or subjects missing",
        StatementTimeout = "statements timed out",
        NoConnections = "all connections in use",
        Poison = "burst of poison messages",
    }
}

impl Kind {
    /// Injects the fault, holds it, and heals it completely. Returns whether the fault had a
    /// visible consequence. A fault without one is not counted.
    pub async fn strike(self, site: &Site, dice: &mut StdRng) -> Result<bool> {
        match self {
            Self::BrokerCrash => site.crash_broker().await.map(|()| true),
            Self::PrimaryCrash => servers::crash_primary(site).await,
            // Commits wait until the standby is up again.
            Self::StandbyCrash => {
                let crashed = site.with_pair(|pair| pair.crash_standby()).await;
                crashed.map(|()| true)
            }
            Self::Promotion => servers::promote_standby(site).await,
            Self::ClockJump => servers::jump_clock(site, dice).await,
            Self::FullDisk => servers::fill_disk(site, dice).await,
            Self::NetworkReset => network::reset(site, dice).await,
            Self::NetworkStall => network::cut(site, dice, Network::Stall).await,
            Self::NetworkHalfOpen => network::cut(site, dice, Network::HalfOpen).await,
            Self::RightsRevoked => environment::revoke_rights(site, dice).await,
            Self::TableAway => environment::rename_table(site, dice).await,
            Self::TopicsAway => environment::remove_topics(site, dice).await,
            Self::StatementTimeout => environment::time_out(site, dice).await,
            Self::NoConnections => environment::use_all_connections(site, dice).await,
            Self::Poison => poison::burst(site, dice).await,
        }
    }
}
