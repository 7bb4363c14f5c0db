//! Counts the violations of a run with leases, in SQL.

use std::fmt;

use tokio_postgres::{Client, Error};

/// The numbers of violations, and the numbers of events that were checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Identities that were handled twice.
    pub handled_twice: i64,
    /// Leases that were valid when another client handled their identity.
    pub two_have_won: i64,
    /// Pairs of leases of one identity that were valid at the same time.
    pub leased_twice: i64,
    /// Messages that were received twice.
    pub received_twice: i64,
    /// Messages that were received, and are neither handled nor pending.
    pub lost: i64,
    /// Claims that did not remove the pending message of their identity.
    pub left_behind: i64,
    /// Identities that were handled by a claim.
    pub claimed: i64,
    /// Identities that were handled by the completion of a lease.
    pub completed: i64,
    /// Leases that expired or were released before another client handled their identity.
    pub taken_over: i64,
    /// Messages that were received.
    pub received: i64,
}

impl Verdict {
    /// Returns whether each kind of event has happened often enough for a meaningful run.
    #[must_use]
    pub fn has_enough_events(&self) -> bool {
        self.claimed > 100 && self.completed > 100 && self.taken_over > 50 && self.received > 20
    }

    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.handled_twice
            + self.two_have_won
            + self.leased_twice
            + self.received_twice
            + self.lost
            + self.left_behind
            == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The leases, each with a time until which it was certainly valid: the time of the request for the
/// lease plus the length of the lease, because a lease begins after the request for it. If the
/// client requested the release of the lease earlier, the lease was certainly valid until that
/// request.
const LIVED_UNTIL: &str = "(SELECT l.identity, l.token, l.told,
             least(l.asked + l.lease, min(r.asked)) AS lived_until
        FROM leased l LEFT JOIN released r USING (identity, token)
       GROUP BY l.identity, l.token, l.asked, l.told, l.lease)";

/// Returns the number of leases that were valid when another client handled their identity.
///
/// Every lease of an identity is acquired before the identity is handled, and must have ended by
/// then. `told` is the time at which the client that handled the identity had its result.
pub async fn two_have_won(client: &Client) -> Result<i64, Error> {
    let sql = format!(
        "SELECT count(*) FROM {LIVED_UNTIL} l JOIN handled h USING (identity)
          WHERE h.token IS DISTINCT FROM l.token AND l.lived_until > h.told"
    );
    count(client, &sql).await
}

pub(super) async fn check(client: &Client) -> Result<Verdict, Error> {
    let pending = "(SELECT key, id FROM idem.pending_0
                     WHERE (SELECT current FROM idem.pending_rotation) = 0
                    UNION ALL
                    SELECT key, id FROM idem.pending_1
                     WHERE (SELECT current FROM idem.pending_rotation) = 1)";
    Ok(Verdict {
        handled_twice: count(
            client,
            "SELECT count(*) - count(DISTINCT identity) FROM handled",
        )
        .await?,
        two_have_won: two_have_won(client).await?,
        leased_twice: count(
            client,
            &format!(
                "SELECT count(*) FROM {LIVED_UNTIL} a JOIN {LIVED_UNTIL} b USING (identity)
                  WHERE a.token < b.token AND a.lived_until > b.told"
            ),
        )
        .await?,
        received_twice: count(
            client,
            "SELECT count(*) - count(DISTINCT identity) FROM received",
        )
        .await?,
        lost: count(
            client,
            &format!(
                "SELECT count(*) FROM received r
                  WHERE NOT EXISTS (SELECT 1 FROM handled h WHERE h.identity = r.identity)
                    AND NOT EXISTS (SELECT 1 FROM {pending} w WHERE w.id = 'm ' || r.identity)"
            ),
        )
        .await?,
        left_behind: count(
            client,
            &format!("SELECT count(*) FROM {pending} w WHERE idem_is_claimed(w.id, 'race')"),
        )
        .await?,
        claimed: count(client, "SELECT count(*) FROM handled WHERE token IS NULL").await?,
        completed: count(
            client,
            "SELECT count(*) FROM handled WHERE token IS NOT NULL",
        )
        .await?,
        taken_over: count(
            client,
            "SELECT count(*) FROM leased l JOIN handled h USING (identity)
              WHERE h.token IS DISTINCT FROM l.token",
        )
        .await?,
        received: count(client, "SELECT count(*) FROM received").await?,
    })
}

async fn count(client: &Client, sql: &str) -> Result<i64, Error> {
    Ok(client.query_one(sql, &[]).await?.get(0))
}
