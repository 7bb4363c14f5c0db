//! Tests of I6: when the wall clock jumps, no claim is forgotten early, the rotations continue, and
//! no second claim is possible.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::clock::Clock;
use idem_testkit::ring::{SEALED, make_due, rotations};
use idem_testkit::{Session, until};

use super::{claim, cluster};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Starts a server with this wall clock.
fn server(clock: &Clock, name: &str, setting: (&str, &str)) -> Result<Cluster> {
    let builder = cluster(name)?.setting(setting.0, setting.1);
    let environment = clock.environment().into_iter();
    environment
        .fold(builder, |builder, (variable, value)| {
            builder.env(&variable, &value)
        })
        .start()
}

/// Returns the wall clock of the server, in seconds since the epoch.
async fn wall_clock(session: &Session) -> Result<i64> {
    Ok(session
        .text("SELECT extract(epoch FROM clock_timestamp())::bigint")
        .await?
        .parse()?)
}

/// Moves the clock from an offset of `from` seconds to an offset of `to` seconds. Fails when the
/// clock of the server has not jumped, because the tests would then test nothing.
async fn jump(clock: &Clock, session: &Session, from: i64, to: i64) -> Result<()> {
    let before = wall_clock(session).await?;
    clock.set(to)?;
    let jumped = wall_clock(session).await? - before;
    ensure!(
        (jumped - (to - from)).abs() <= 60,
        "the clock jumped by {jumped} s"
    );
    Ok(())
}

async fn set_retentions(session: &Session, millis: [u32; 3]) -> Result<()> {
    for (ring, retention) in ["short", "standard", "long"].into_iter().zip(millis) {
        session
            .run(&format!(
                "SELECT idem_set_retention('{ring}', '{retention} milliseconds')"
            ))
            .await?;
    }
    Ok(())
}

/// I6. Goal: a clock that jumps ahead repeatedly makes no rotation due.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_clock_ahead_forgets_no_claim_early() -> Result<()> {
    let clock = Clock::wrong_by(0)?;
    let server = server(&clock, "clock-ahead", ("idem.databases", "none"))?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    assert_eq!(claim(&session, "m1").await?, "t");
    make_due(&session, "standard").await?;
    session.run("CALL idem_maintain()").await?;
    let mut wrong_by = 0;
    for by in [HOUR, 5 * DAY, YEAR, 5 * DAY, YEAR] {
        jump(&clock, &session, wrong_by, wrong_by + by).await?;
        wrong_by += by;
        session.run("CALL idem_maintain()").await?;
        assert_eq!(
            claim(&session, "m1").await?,
            "f",
            "the claim is forgotten when the clock is {wrong_by} s ahead"
        );
    }
    assert_eq!(
        rotations(&session, "standard").await?,
        1,
        "no rotation was due"
    );
    Ok(())
}

/// I6. Goal: the ring continues to rotate after the clock has jumped ahead and back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_ring_rotates_after_clock_jumps_back() -> Result<()> {
    let clock = Clock::wrong_by(0)?;
    let server = server(&clock, "clock-back", ("idem.databases", "none"))?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    set_retentions(&session, [200, 200, 200]).await?;
    jump(&clock, &session, 0, YEAR).await?;
    make_due(&session, "standard").await?;
    session.run("CALL idem_maintain()").await?;
    jump(&clock, &session, YEAR, 0).await?;
    let before = rotations(&session, "standard").await?;
    until(
        "the ring rotates, although the clock is a year behind the last rotation",
        async || {
            session.run("CALL idem_maintain()").await?;
            Ok(rotations(&session, "standard").await? >= before + 3)
        },
    )
    .await
}

/// I1. Goal: when a destination moves to another ring, its claims in the old ring are still found,
/// although a wrong clock has set the times of the old ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_move_after_a_wrong_clock_allows_no_second_claim() -> Result<()> {
    let clock = Clock::wrong_by(0)?;
    let server = server(&clock, "clock-move", ("idem.databases", "none"))?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    jump(&clock, &session, 0, YEAR).await?;
    for _ in 0..=SEALED {
        make_due(&session, "standard").await?;
        session.run("CALL idem_maintain()").await?;
    }
    jump(&clock, &session, YEAR, 0).await?;
    assert_eq!(claim(&session, "m1").await?, "t");
    session
        .run("SELECT idem_configure('orders', '30 days')")
        .await?;
    assert_eq!(
        claim(&session, "m1").await?,
        "f",
        "the message is claimed again after a move"
    );
    Ok(())
}

/// I6. Goal: when the clock jumps between two passes, the time with which `sent_at` is compared
/// changes, too. A message that was just sent is therefore not expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_new_message_is_not_expired_after_a_wrong_clock() -> Result<()> {
    let clock = Clock::wrong_by(0)?;
    let server = server(&clock, "clock-expired", ("idem.databases", "none"))?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    jump(&clock, &session, 0, YEAR).await?;
    for _ in 0..SEALED + 2 {
        make_due(&session, "standard").await?;
        session.run("CALL idem_maintain()").await?;
    }
    jump(&clock, &session, YEAR, 0).await?;
    session.run("CALL idem_maintain()").await?;
    let outcome = "SELECT outcome FROM idem_claim('m1', 'orders', sent_at => clock_timestamp())";
    assert_eq!(session.text(outcome).await?, "claimed");
    let outcome = "SELECT outcome FROM idem_claim('m2', 'orders', \
                   sent_at => clock_timestamp() - interval '1 hour')";
    assert_eq!(
        session.text(outcome).await?,
        "expired",
        "the message is older than the claims that the ring remembers"
    );
    Ok(())
}

/// Goal: health reports a clock that has jumped, a clock that is behind its reading in the last
/// pass, and a ring that does not rotate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_reports_a_clock_that_jumped() -> Result<()> {
    let clock = Clock::wrong_by(0)?;
    let server = server(&clock, "clock-health", ("idem.databases", "none"))?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    let health = "SELECT status, detail FROM idem_health() WHERE check_name = 'clock'";
    session.run("CALL idem_maintain()").await?;
    ensure!(session.text(health).await?.starts_with("ok|"));
    jump(&clock, &session, 0, -5 * DAY).await?;
    let check = session.text(health).await?;
    ensure!(
        check.starts_with("warning|") && check.contains("behind its reading in the last pass"),
        "{check}"
    );
    session.run("CALL idem_maintain()").await?;
    let check = session.text(health).await?;
    ensure!(
        check.starts_with("warning|") && check.contains("jumped by -5 days"),
        "{check}"
    );
    make_due(&session, "standard").await?;
    make_due(&session, "standard").await?;
    make_due(&session, "standard").await?;
    let rotation = "SELECT status FROM idem_health() WHERE check_name = 'rotation standard'";
    assert_eq!(
        session.text(rotation).await?,
        "critical",
        "a ring that does not rotate"
    );
    Ok(())
}

/// Goal: health is `ok` in a new database, and is `critical` when the first pass has not run in
/// time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_critical_without_a_first_pass() -> Result<()> {
    let clock = Clock::wrong_by(0)?;
    let server = server(&clock, "clock-no-pass", ("idem.databases", "none"))?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    let health = "SELECT status FROM idem_health() WHERE check_name = 'worker'";
    assert_eq!(session.text(health).await?, "ok");
    jump(&clock, &session, 0, 600).await?;
    assert_eq!(session.text(health).await?, "critical");
    Ok(())
}

/// The step of the rotation during which the clock jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Steady,
    Opening,
    Emptying,
}

const RETENTION: Duration = Duration::from_millis(1000);

/// Whether a ring of claims waits at the fence of its opening; NULL if none waits at a fence.
const WAITS_WHILE_OPENING: &str = "
    SELECT bool_or(r.phase = 'opening') FROM idem.ring r
      JOIN idem.fence f ON f.name = 'ring ' || r.name AND f.step = idem.published_step(r)
     WHERE r.name <> 'outbox' AND f.lockers <> '{}'";

/// A database in which a rotation is in the step `phase` when the clock jumps.
struct Site {
    phase: Phase,
    session: Session,
    holders: [Session; 2],
    looks: usize,
}

impl Site {
    async fn new(server: &Cluster, phase: Phase) -> Result<Self> {
        let name = format!("{phase:?}").to_lowercase();
        let session = Session::in_database_with_idem(server, &name).await?;
        let holders = [
            Session::superuser(server, &name).await?,
            Session::superuser(server, &name).await?,
        ];
        assert_eq!(claim(&session, "first").await?, "t");
        set_retentions(&session, [1000, 1001, 1002]).await?;
        Ok(Self {
            phase,
            session,
            holders,
            looks: 0,
        })
    }

    /// Returns true when a ring of claims is in this state.
    async fn is(&self, phase: &str) -> Result<bool> {
        let sql =
            format!("SELECT bool_or(phase = '{phase}') FROM idem.ring WHERE name <> 'outbox'");
        Ok(self.session.text(&sql).await? == "t")
    }

    async fn hold(&self, holder: usize, id: &str) -> Result<()> {
        self.holders[holder].run("BEGIN").await?;
        assert_eq!(claim(&self.holders[holder], id).await?, "t");
        Ok(())
    }

    /// Stops the rotation in the phase of this database: transactions with claims stay open, and
    /// the rotation waits for them.
    async fn freeze(&self, round: usize) -> Result<()> {
        if self.phase == Phase::Steady {
            return Ok(());
        }
        let mut tries = 0;
        until("a ring is held while it is opening", async || {
            // A claim that begins while a slice is being emptied stops the rotation in that step
            // instead of at the opening. The test then tries again with the next rotation.
            tries += 1;
            self.hold(0, &format!("holder-{round}-{tries}")).await?;
            let mut opening = String::new();
            until("a rotation waits at its fence", async || {
                opening = self.session.text(WAITS_WHILE_OPENING).await?;
                Ok(opening != "NULL")
            })
            .await?;
            let opening = opening == "t";
            if !opening {
                self.holders[0].run("ROLLBACK").await?;
            }
            Ok(opening)
        })
        .await?;
        if self.phase == Phase::Emptying {
            // The second claim begins after the fence of the opening, so only the next fence waits
            // for it.
            self.hold(1, &format!("second-holder-{round}")).await?;
            self.holders[0].run("COMMIT").await?;
            until("a ring has rotated", async || self.is("emptying").await).await?;
        }
        Ok(())
    }

    async fn release(&self) -> Result<()> {
        for holder in &self.holders {
            // COMMIT outside a transaction raises a warning only.
            holder.run("COMMIT").await?;
        }
        Ok(())
    }

    /// Asserts that the claim is found during its retention, and that no move of the destination
    /// allows a second claim.
    async fn keeps(&mut self, id: &str, claimed: Instant, round: usize) -> Result<()> {
        let mut look = 0;
        loop {
            if look == 1 {
                let retention = [1000, 1001, 1002][round % 3];
                let sql = format!("SELECT idem_configure('orders', '{retention} milliseconds')");
                self.session.run(&sql).await?;
            }
            let again = claim(&self.session, id).await?;
            if claimed.elapsed() >= RETENTION {
                return Ok(());
            }
            assert_eq!(
                again,
                "f",
                "{id} of {:?}: claimed again after {:?}",
                self.phase,
                claimed.elapsed()
            );
            look += 1;
            self.looks += 1;
        }
    }

    async fn rotates(&self) -> Result<()> {
        let mut before = Vec::new();
        for ring in ["short", "standard", "long"] {
            before.push(rotations(&self.session, ring).await?);
        }
        until("every ring rotates", async || {
            for (ring, before) in ["short", "standard", "long"].into_iter().zip(&before) {
                if rotations(&self.session, ring).await? < before + 2 {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
        .with_context(|| format!("{:?}", self.phase))
    }
}

/// I1, I6. Goal: jumps of an hour, five days and a year, ahead and back, do not shorten the
/// retention and do not stop the rings. The clock jumps at each step of a rotation, and many times
/// in a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_clock_jumps_lose_no_claim_and_stop_no_rotation() -> Result<()> {
    let clock = Clock::wrong_by(0)?;
    let server = server(&clock, "clock-jumps", ("idem.naptime", "100ms"))?;
    let mut sites = Vec::new();
    for phase in [Phase::Steady, Phase::Opening, Phase::Emptying] {
        sites.push(Site::new(&server, phase).await?);
    }
    let mut wrong_by = 0;
    let offsets = [
        HOUR,
        0,
        -HOUR,
        0,
        5 * DAY,
        0,
        -5 * DAY,
        0,
        YEAR,
        0,
        -YEAR,
        0,
    ];
    for (round, &offset) in offsets.iter().enumerate() {
        let id = format!("m-{round}");
        for site in &sites {
            site.freeze(round).await?;
        }
        let claimed = Instant::now();
        for site in &sites {
            assert_eq!(claim(&site.session, &id).await?, "t");
        }
        jump(&clock, &sites[0].session, wrong_by, offset).await?;
        wrong_by = offset;
        for site in &mut sites {
            site.release().await?;
        }
        let kept = sites.iter_mut().map(|site| site.keeps(&id, claimed, round));
        futures_util::future::try_join_all(kept).await?;
        for site in &sites {
            site.rotates().await?;
        }
    }

    // Let the clock jump many times within one retention.
    let claimed = Instant::now();
    for site in &sites {
        assert_eq!(claim(&site.session, "restless").await?, "t");
    }
    let mut jumps = 0;
    while claimed.elapsed() < RETENTION {
        clock.set([YEAR, -YEAR, 5 * DAY, 0][jumps % 4])?;
        jumps += 1;
        for site in &sites {
            let again = claim(&site.session, "restless").await?;
            ensure!(
                claimed.elapsed() >= RETENTION || again == "f",
                "{:?}: claimed again after {jumps} jumps",
                site.phase
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    clock.set(0)?;
    for site in &sites {
        site.rotates().await?;
        ensure!(
            site.looks > 20,
            "the test was too slow: it repeated only {} claims",
            site.looks
        );
    }
    ensure!(jumps > 5, "only {jumps} jumps");
    Ok(())
}
