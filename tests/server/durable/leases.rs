//! Tests of leases: a lease is extended, is released or expires, and its token is valid for one
//! holder only.

use anyhow::{Result, ensure};
use idem_testkit::{Database, Session, until};

use super::{Handed, claim, fail, ids, next, next_for, receive};

/// Waits until leases have expired and `idem_next` returns messages again. Returns these messages.
async fn next_after_expiry(session: &Session) -> Result<Vec<Handed>> {
    let mut handed = Vec::new();
    until("the lease has expired", async || {
        handed = next(session, 10).await?;
        Ok(!handed.is_empty())
    })
    .await?;
    Ok(handed)
}

#[tokio::test]
async fn expired_lease_is_redelivered_with_error_and_attempt() -> Result<()> {
    let db = Database::with_idem("again").await?;
    let (old_holder, successor) = (db.connect().await?, db.connect().await?);
    receive(&old_holder, "a", "").await?;
    let old = next_for(&old_holder, 1, "200 milliseconds")
        .await?
        .remove(0);
    assert_eq!((old.attempt, old.last_error.as_str()), (1, "-"));
    let new = next_after_expiry(&successor).await?.remove(0);
    assert_eq!(
        (new.attempt, new.last_error.as_str()),
        (2, "the lease expired")
    );
    assert!(new.token > old.token);

    for function in [
        "idem_extend('a', 'mail', $)",
        "idem_release('a', 'mail', $)",
        "idem_complete('a', 'mail', $)",
        "idem_bury('a', 'mail', $, '', 'x')",
    ] {
        let stale = old_holder
            .refused(&format!(
                "SELECT {}",
                function.replace('$', &old.token.to_string())
            ))
            .await?;
        assert_eq!(stale.sqlstate, "55000", "{function}: {stale:?}");
        ensure!(!stale.hint.is_empty(), "{function}");
    }
    let pending = "SELECT token, attempt, state FROM idem.pending";
    assert_eq!(
        successor.text(pending).await?,
        format!("{}|2|l", new.token),
        "the old token has written nothing"
    );
    successor
        .run(&format!("SELECT idem_complete('a', 'mail', {})", new.token))
        .await?;
    assert!(!claim(&successor, "a").await?, "the message is done");
    Ok(())
}

/// The attempt is counted when it begins, so an attempt that kills its consumer is counted, too.
#[tokio::test]
async fn killed_consumer_has_used_an_attempt() -> Result<()> {
    let db = Database::with_idem("killed").await?;
    let session = db.connect().await?;
    super::without_back_off(&session, 3).await?;
    receive(&session, "poison", "").await?;
    for attempt in 1..=3 {
        let victim = db.connect().await?;
        let mut handed = Vec::new();
        until("the message is redelivered", async || {
            handed = next_for(&victim, 1, "100 milliseconds").await?;
            Ok(!handed.is_empty())
        })
        .await?;
        assert_eq!(handed[0].attempt, attempt);
        victim
            .run("BEGIN; SELECT idem_try_claim('poison', 'mail')")
            .await?;
        let pid = victim.pid().await?;
        assert_eq!(
            session
                .text(&format!("SELECT pg_terminate_backend({pid}, 5000)"))
                .await?,
            "t"
        );
    }
    let died = "SELECT id, attempt, jsonb_path_query_array(errors, '$[*].attempt'), \
                jsonb_path_query_array(errors, '$[*].error') FROM idem.dead_letters";
    until("the message is dead", async || {
        assert_eq!(ids(&next(&session, 1).await?), [""; 0], "no fourth attempt");
        Ok(!session.text(died).await?.is_empty())
    })
    .await?;
    let out = "\"the lease expired\"";
    assert_eq!(
        session.text(died).await?,
        format!("poison|3|[1, 2, 3]|[{out}, {out}, {out}]")
    );
    Ok(())
}

#[tokio::test]
async fn extended_lease_excludes_other_consumers() -> Result<()> {
    let db = Database::with_idem("extend").await?;
    let (holder, other) = (db.connect().await?, db.connect().await?);
    receive(&holder, "a", "").await?;
    receive(&holder, "b", "").await?;
    let held = next_for(&holder, 2, "300 milliseconds").await?;
    holder
        .run(&format!(
            "SELECT idem_extend('a', 'mail', {}, '1 hour')",
            held[0].token
        ))
        .await?;
    assert_eq!(
        ids(&next_after_expiry(&other).await?),
        ["b"],
        "the lease of a is extended"
    );
    assert_eq!(
        other
            .text(
                "SELECT id, until > clock_timestamp() + interval '50 minutes' FROM idem.leases \
                 ORDER BY id"
            )
            .await?,
        "a|t\nb|t"
    );
    Ok(())
}

/// A message that is released without an error is redelivered at once, and the attempt is not
/// counted.
#[tokio::test]
async fn message_released_without_error_is_not_counted() -> Result<()> {
    let db = Database::with_idem("back").await?;
    let session = db.connect().await?;
    receive(&session, "a", "").await?;
    for _ in 0..3 {
        let held = next(&session, 1).await?.remove(0);
        assert_eq!((held.attempt, held.last_error.as_str()), (1, "-"));
        let release = format!("SELECT idem_release('a', 'mail', {})", held.token);
        assert_eq!(session.text(&release).await?, "00:00:00");
        assert_eq!(
            session.refused(&release).await?.sqlstate,
            "55000",
            "the token is valid once"
        );
    }
    Ok(())
}

#[tokio::test]
async fn uuid_is_one_message_in_every_spelling() -> Result<()> {
    let db = Database::with_idem("uuid").await?;
    let session = db.connect().await?;
    let id = "0192F3A4-0000-7ABC-8DEF-0123456789AB";
    session
        .run(&format!(
            "SELECT idem_receive('{id}'::uuid, 'mail', '1'::jsonb)"
        ))
        .await?;
    let token = session.text("SELECT token FROM idem_next('mail')").await?;
    session
        .run(&format!(
            "SELECT idem_extend('{id}', 'mail', {token}); \
             SELECT idem_extend('{id}'::uuid, 'mail', {token})"
        ))
        .await?;
    assert_eq!(
        session
            .text(&format!(
                "SELECT idem_release('{id}'::uuid, 'mail', {token}, 'x', true)"
            ))
            .await?,
        "NULL"
    );
    assert_eq!(
        session.text("SELECT id FROM idem.dead_letters").await?,
        id.to_lowercase()
    );
    assert_eq!(
        session
            .text(&format!("SELECT idem_requeue('{id}'::uuid, 'mail')"))
            .await?,
        "t"
    );
    assert_eq!(
        session
            .text("SELECT attempt FROM idem_next('mail')")
            .await?,
        "1"
    );
    Ok(())
}

#[tokio::test]
async fn leases_fail_outside_read_committed() -> Result<()> {
    let db = Database::with_idem("level").await?;
    let session = db.connect().await?;
    receive(&session, "a", "").await?;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for function in [
            "* FROM idem_next('mail')",
            "idem_release('a', 'mail', 1)",
            "idem_requeue('a', 'mail')",
            "idem_next_wait('mail', 0)",
        ] {
            session
                .run(&format!("BEGIN ISOLATION LEVEL {level}"))
                .await?;
            let refusal = session.refused(&format!("SELECT {function}")).await?;
            assert_eq!(refusal.sqlstate, "25000", "{function}: {refusal:?}");
            session.run("ROLLBACK").await?;
        }
    }
    session.run("BEGIN READ ONLY").await?;
    assert_eq!(
        session
            .refused("SELECT * FROM idem_next('mail')")
            .await?
            .sqlstate,
        "25006"
    );
    session.run("ROLLBACK").await?;
    Ok(())
}

#[tokio::test]
async fn backoff_grows_within_its_jitter_and_cap() -> Result<()> {
    let db = Database::with_idem("rest").await?;
    let session = db.connect().await?;
    session
        .run(
            "SELECT idem_configure_retries('mail', 40, base => '1 second', factor => 3, \
             cap => '20 seconds', jitter => 0.5)",
        )
        .await?;
    receive(&session, "a", "").await?;
    let mut shares = Vec::new();
    for attempt in 1..=40 {
        let held = next(&session, 1).await?.remove(0);
        assert_eq!(held.attempt, attempt);
        let backoff = fail(&session, &held, "again").await?;
        if attempt == 40 {
            assert_eq!(backoff, "NULL", "no attempt is left");
            break;
        }
        let whole = 3f64.powi(attempt - 1).min(20.0);
        let seconds: f64 = session
            .text(&format!("SELECT extract(epoch FROM interval '{backoff}')"))
            .await?
            .parse()?;
        ensure!(
            seconds >= whole / 2.0 - 1e-5 && seconds <= whole + 1e-5,
            "attempt {attempt}: {seconds} s of {whole} s"
        );
        shares.push(seconds / whole);
        let due = format!(
            "SELECT abs(extract(epoch FROM due_at - clock_timestamp()) - {seconds}) < 5 \
             FROM idem.pending"
        );
        assert_eq!(
            session.text(&due).await?,
            "t",
            "the message is due after the back-off"
        );
        session
            .run("UPDATE idem.pending_0 SET due_at = clock_timestamp()")
            .await?;
    }
    let spread =
        shares.iter().copied().fold(0.0, f64::max) - shares.iter().copied().fold(1.0, f64::min);
    ensure!(spread > 0.1, "the back-off is not random: {shares:?}");
    Ok(())
}

/// When the leases of several messages expire, one of the messages can have crashed the consumer.
/// These messages are therefore leased again one by one.
#[tokio::test]
async fn messages_with_expired_leases_are_redelivered_alone() -> Result<()> {
    let db = Database::with_idem("alone").await?;
    let session = db.connect().await?;
    for id in ["a", "b", "c"] {
        receive(&session, id, "").await?;
    }
    assert_eq!(next_for(&session, 10, "200 milliseconds").await?.len(), 3);
    assert_eq!(ids(&next_after_expiry(&session).await?), ["a"]);
    receive(&session, "d", "").await?;
    receive(&session, "e", "").await?;
    assert_eq!(ids(&next(&session, 10).await?), ["b"]);
    assert_eq!(ids(&next(&session, 10).await?), ["c"]);
    assert_eq!(
        ids(&next(&session, 10).await?),
        ["d", "e"],
        "the leases of these messages have not expired"
    );
    Ok(())
}

#[tokio::test]
async fn expired_message_does_not_wait_for_its_successor() -> Result<()> {
    let db = Database::with_idem("stuck").await?;
    let session = db.connect().await?;
    receive(&session, "first", ", key => 'k'").await?;
    assert_eq!(next_for(&session, 10, "200 milliseconds").await?.len(), 1);
    // The lease moves the due time of the first message behind that of the second message, so the
    // second message comes first in the order of due times.
    receive(&session, "second", ", key => 'k'").await?;
    assert_eq!(ids(&next_after_expiry(&session).await?), ["first"]);
    assert!(claim(&session, "first").await?);
    assert_eq!(ids(&next(&session, 10).await?), ["second"]);
    Ok(())
}

/// New messages arrive all the time. They do not delay messages with an expired lease, although
/// messages that wait for another message of their key precede these messages in the order.
#[tokio::test]
async fn backlog_does_not_delay_messages_with_expired_leases() -> Result<()> {
    let db = Database::with_idem("backlog").await?;
    let session = db.connect().await?;
    receive(&session, "busy", ", key => 'busy'").await?;
    assert_eq!(ids(&next(&session, 1).await?), ["busy"]);
    receive(&session, "first", ", key => 'k'").await?;
    receive(&session, "plain", "").await?;
    let leased = next_for(&session, 10, "1 hour").await?;
    assert_eq!(ids(&leased), ["first", "plain"]);
    // These messages are due before the leases end.
    receive(&session, "second", ", key => 'k'").await?;
    receive(&session, "waits", ", key => 'busy'").await?;
    session
        .run("UPDATE idem.pending_0 SET due_at = clock_timestamp() WHERE id IN ('first', 'plain')")
        .await?;
    for n in 0..6 {
        receive(&session, &format!("new{n}"), "").await?;
    }
    assert_eq!(ids(&next(&session, 2).await?), ["first"]);
    assert_eq!(ids(&next(&session, 2).await?), ["plain"]);
    assert_eq!(ids(&next(&session, 2).await?), ["new0", "new1"]);
    assert!(claim(&session, "first").await?);
    assert_eq!(ids(&next(&session, 2).await?), ["second", "new2"]);
    Ok(())
}
