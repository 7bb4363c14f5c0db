//! Calls to something outside of the database, by workers that are killed at every step.

use std::{collections::BTreeSet, net::SocketAddr, path::Path};

use anyhow::{Result, ensure};
use idem_brokers::MailSink;
use idem_tests::{
    harness::Database,
    stories::{
        Drill, Moment, Outcome, Point,
        outside::{Carrier, Gateway},
        work::{Role, UNKNOWN, notes},
    },
};
use tokio_postgres::Client;

use crate::WORKER;

/// One message of a story, and what the world knows of it in the end.
struct Told {
    outcome: Outcome,
    /// How often the deed was done.
    deeds: usize,
    /// What its workers took down.
    notes: Vec<String>,
    /// How many effects were recorded.
    effects: i64,
    /// Whether it is among the dead letters.
    is_dead: bool,
}

/// Every point of a story: each in its order, and the undisturbed message first.
struct Story(Vec<Told>);

impl Story {
    /// Tells it. `deeds` asks the world outside, after all is over, how often something was done to
    /// each message.
    async fn tell(
        role: Role,
        database: &Database,
        outside: SocketAddr,
        deeds: impl Fn(&str) -> Result<usize>,
    ) -> Result<Self> {
        let client = database.connect().await?;
        notes::make_table(&client).await?;
        let drill = Drill {
            program: Path::new(WORKER),
            role,
            database,
            outside,
        };
        let mut story = Vec::new();
        for outcome in drill.every_point().await? {
            let message = outcome.message.clone();
            story.push(Told {
                deeds: deeds(&message)?,
                notes: notes::read(&client, &message).await?,
                effects: effects(&client, &message, role).await?,
                is_dead: is_dead(&client, &message).await?,
                outcome,
            });
        }
        eprintln!(
            "{role}: where the worker was killed, how often it was done, and what was taken down"
        );
        for Told {
            outcome,
            deeds,
            notes,
            ..
        } in &story
        {
            eprintln!("{:<70} {deeds} {}", outcome.to_string(), notes.join(", "));
        }
        let irregular = story.iter().filter(|told| !told.is_predictable()).count();
        eprintln!(
            "{irregular} of {} workers renewed a lease or lost it",
            story.len()
        );
        ensure!(
            story[0].deeds == 1 && story[0].notes.is_empty(),
            "undisturbed, it was not simply done"
        );
        Ok(Self(story))
    }

    /// The worker was killed at every moment of these turns, and of those with which they took
    /// effect.
    fn assert_cut(&self, said: &[&str]) {
        let turns = &self.0[0].outcome.turns;
        for said in said {
            let turn = turns.iter().position(|name| name.contains(said));
            let turn = turn.unwrap_or_else(|| panic!("no turn says {said}: {turns:?}"));
            for turn in [Some(turn), effective_turn(turns, said)]
                .into_iter()
                .flatten()
            {
                let predictable = self.0.iter().filter(|told| told.is_predictable());
                let points = predictable.filter_map(|told| told.outcome.point);
                let moments: BTreeSet<_> = points
                    .filter(|point| point.turn == turn)
                    .map(|point| point.moment)
                    .collect();
                assert_eq!(
                    moments.len(),
                    4,
                    "{said}, turn {turn} ({}): {moments:?}",
                    turns[turn]
                );
            }
        }
    }

    /// Done once, and on record once, wherever the worker was killed.
    fn assert_once(&self) {
        for told in &self.0 {
            assert_eq!(
                (told.deeds, told.effects),
                (1, 1),
                "{}: {:?}",
                told.outcome,
                told.notes
            );
        }
    }

    fn max_deeds(&self) -> usize {
        self.0
            .iter()
            .map(|told| told.deeds)
            .max()
            .unwrap_or_default()
    }
}

impl Told {
    /// Whether the worker was killed when this had taken effect and that had not yet.
    fn is_between(&self, this: &str, that: &str) -> bool {
        self.outcome
            .point
            .is_some_and(|point| self.has_passed(this, point) && !self.has_passed(that, point))
    }

    /// Whether this took effect before the worker was killed.
    fn has_passed(&self, said: &str, killed: Point) -> bool {
        effective_turn(&self.outcome.turns, said).is_some_and(|turn| {
            turn < killed.turn || turn == killed.turn && killed.moment >= Moment::Unheard
        })
    }

    /// Whether the kill alone decides what becomes of it. A worker that was slow has renewed its
    /// lease besides, or has lost it.
    fn is_predictable(&self) -> bool {
        self.outcome.is_regular && !self.notes.iter().any(|note| note == "lost")
    }

    fn was_told(&self) -> bool {
        self.notes.iter().any(|note| note == UNKNOWN)
    }
}

/// The turn with which this takes effect: the next commit, if it is said to the database.
fn effective_turn(turns: &[String], said: &str) -> Option<usize> {
    let mut after = turns
        .iter()
        .enumerate()
        .skip_while(|(_, name)| !name.contains(said));
    let (turn, name) = after.next()?;
    if !name.starts_with("database") {
        return Some(turn);
    }
    let commit = format!("{}: COMMIT", name.split(':').next().unwrap_or_default());
    after
        .find(|(_, name)| **name == commit)
        .map(|(turn, _)| turn)
}

async fn effects(client: &Client, message: &str, role: Role) -> Result<i64> {
    let sql = "SELECT pg_catalog.count(*) FROM idem_effects($1, $2)";
    Ok(client
        .query_one(sql, &[&message, &role.destination()])
        .await?
        .get(0))
}

async fn is_dead(client: &Client, message: &str) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT FROM idem.dead_letter WHERE id = $1)";
    Ok(client.query_one(sql, &[&message]).await?.get(0))
}

/// How often a mail with this subject was sent.
fn mails(sink: &MailSink, subject: &str) -> Result<usize> {
    let line = format!("Subject: {subject}\n");
    Ok(sink
        .mails()?
        .iter()
        .filter(|mail| mail.contains(&line))
        .count())
}

/// The turn in which a mail is sent: what begins like that is its text.
const MAIL: &str = "From: shop@example.org";

const BEGUN: &str = "idem_begin_call";
const FINISHED: &str = "idem_finish_call";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_charged_once_wherever_the_worker_is_killed() -> Result<()> {
    let (database, gateway) = (Database::with_idem("card").await?, Gateway::open().await?);
    let charges = |message: &str| Ok(gateway.charges(message));
    let story = Story::tell(Role::Card, &database, gateway.address(), charges).await?;
    story.assert_cut(&[
        "idem_acquire",
        BEGUN,
        "POST /charges",
        FINISHED,
        "idem_complete",
    ]);
    story.assert_once();
    assert!(gateway.repeats() >= 2, "the same key was shown again");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_charged_twice_without_a_journal() -> Result<()> {
    let (database, gateway) = (
        Database::with_idem("card_bare").await?,
        Gateway::open().await?,
    );
    let charges = |message: &str| Ok(gateway.charges(message));
    let story = Story::tell(Role::CardBare, &database, gateway.address(), charges).await?;
    story.assert_cut(&["POST /charges", "COMMIT"]);
    assert_eq!(story.max_deeds(), 2);
    Ok(())
}

/// The carrier takes every booking for another parcel; so it is asked before it is told again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parcel_is_booked_once_wherever_the_worker_is_killed() -> Result<()> {
    let (database, carrier) = (
        Database::with_idem("carrier").await?,
        Carrier::open().await?,
    );
    let bookings = |message: &str| Ok(carrier.bookings(message));
    let story = Story::tell(Role::Carrier, &database, carrier.address(), bookings).await?;
    story.assert_cut(&[
        "idem_acquire",
        BEGUN,
        "POST /bookings",
        FINISHED,
        "idem_complete",
    ]);
    story.assert_once();
    for told in story.0.iter().filter(|told| told.is_predictable()) {
        assert_eq!(
            told.was_told(),
            told.is_between(BEGUN, FINISHED),
            "{}",
            told.outcome
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parcel_is_booked_twice_without_a_journal() -> Result<()> {
    let (database, carrier) = (
        Database::with_idem("carrier_bare").await?,
        Carrier::open().await?,
    );
    let bookings = |message: &str| Ok(carrier.bookings(message));
    let story = Story::tell(Role::CarrierBare, &database, carrier.address(), bookings).await?;
    story.assert_cut(&["POST /bookings", "COMMIT"]);
    assert_eq!(story.max_deeds(), 2);
    Ok(())
}

/// A mail server knows no keys and answers no questions: it cannot be had once. But the handler
/// knows when it may be sending twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_mail_is_sent_only_after_a_kill_between_sending_and_recording_and_knowingly()
-> Result<()> {
    let (database, sink) = (Database::with_idem("mail").await?, MailSink::start()?);
    let sent = |message: &str| mails(&sink, message);
    let story = Story::tell(Role::Mail, &database, sink.address(), sent).await?;
    story.assert_cut(&[
        "idem_acquire",
        BEGUN,
        "DATA",
        MAIL,
        FINISHED,
        "idem_complete",
    ]);
    for told in &story.0 {
        assert!(told.deeds >= 1, "not sent: {}", told.outcome);
        assert_eq!(told.effects, 1, "{}", told.outcome);
        if told.is_predictable() {
            let expected = if told.is_between(MAIL, FINISHED) {
                2
            } else {
                1
            };
            assert_eq!(told.deeds, expected, "{}", told.outcome);
            assert_eq!(
                told.was_told(),
                told.is_between(BEGUN, FINISHED),
                "{}",
                told.outcome
            );
        }
    }
    assert_eq!(
        story.max_deeds(),
        2,
        "some kills fell between sending and recording"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_gives_up_what_it_does_not_know_sends_no_second_mail() -> Result<()> {
    let (database, sink) = (Database::with_idem("mail_once").await?, MailSink::start()?);
    let sent = |message: &str| mails(&sink, message);
    let story = Story::tell(Role::MailOnce, &database, sink.address(), sent).await?;
    story.assert_cut(&[
        "idem_acquire",
        BEGUN,
        "DATA",
        MAIL,
        FINISHED,
        "idem_complete",
    ]);
    for told in &story.0 {
        assert!(told.deeds <= 1, "{}", told.outcome);
        assert_eq!(
            told.effects,
            i64::from(!told.is_dead),
            "handled, or given up: {}",
            told.outcome
        );
        if told.is_predictable() {
            assert_eq!(
                told.is_dead,
                told.is_between(BEGUN, FINISHED),
                "{}",
                told.outcome
            );
            assert_eq!(
                told.deeds == 0,
                told.is_between(BEGUN, MAIL),
                "{}",
                told.outcome
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_is_sent_twice_and_unknowingly_without_a_journal() -> Result<()> {
    let (database, sink) = (Database::with_idem("mail_bare").await?, MailSink::start()?);
    let sent = |message: &str| mails(&sink, message);
    let story = Story::tell(Role::MailBare, &database, sink.address(), sent).await?;
    story.assert_cut(&["DATA", MAIL, "COMMIT"]);
    assert_eq!(story.max_deeds(), 2);
    assert!(!story.0.iter().any(Told::was_told));
    Ok(())
}
