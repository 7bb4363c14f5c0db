//! Tests of external calls. A run handles one message for each step of a worker, and kills the
//! worker at that step.

use std::{collections::BTreeSet, net::SocketAddr, path::Path};

use anyhow::{Result, ensure};
use idem_brokers::MailSink;
use idem_stories::{
    Drill, Moment, Outcome, Point,
    outside::Service,
    work::{Role, UNKNOWN, notes},
};
use idem_testkit::Database;
use tokio_postgres::Client;

use crate::WORKER;

/// The final state of one message.
struct MessageState {
    outcome: Outcome,
    /// The number of times that the external action was done.
    deeds: usize,
    /// The notes that the workers of the message have written.
    notes: Vec<String>,
    /// The number of recorded effects.
    effects: i64,
    /// Whether the message is a dead letter.
    is_dead: bool,
}

/// The messages of a run: first the message without a kill, and then one message for each kill
/// point, in the order of the kill points.
struct Run(Vec<MessageState>);

impl Run {
    /// Runs the workers. The function `deeds` returns the number of times that the external action
    /// was done for a message. It is called after all workers have ended.
    async fn execute(
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
        let mut run = Vec::new();
        for outcome in drill.every_point().await? {
            let message = outcome.message.clone();
            run.push(MessageState {
                deeds: deeds(&message)?,
                notes: notes::read(&client, &message).await?,
                effects: effects(&client, &message, role).await?,
                is_dead: is_dead(&client, &message).await?,
                outcome,
            });
        }
        eprintln!("{role}: kill point of the worker, number of external actions, notes");
        for MessageState {
            outcome,
            deeds,
            notes,
            ..
        } in &run
        {
            eprintln!("{:<70} {deeds} {}", outcome.to_string(), notes.join(", "));
        }
        let irregular = run.iter().filter(|state| !state.is_predictable()).count();
        eprintln!(
            "{irregular} of {} workers renewed a lease or lost it",
            run.len()
        );
        ensure!(
            run[0].deeds == 1 && run[0].notes.is_empty(),
            "the undisturbed message was not done once and without notes"
        );
        Ok(Self(run))
    }

    /// Asserts that workers were killed at all four moments of each request in `said`, and at all
    /// four moments of the request with which it takes effect (see [`effective_request`]).
    fn assert_cut(&self, said: &[&str]) {
        let requests = &self.0[0].outcome.requests;
        for said in said {
            let request = requests.iter().position(|name| name.contains(said));
            let request =
                request.unwrap_or_else(|| panic!("no request contains {said}: {requests:?}"));
            for request in [Some(request), effective_request(requests, said)]
                .into_iter()
                .flatten()
            {
                let predictable = self.0.iter().filter(|state| state.is_predictable());
                let points = predictable.filter_map(|state| state.outcome.point);
                let moments: BTreeSet<_> = points
                    .filter(|point| point.request == request)
                    .map(|point| point.moment)
                    .collect();
                assert_eq!(
                    moments.len(),
                    4,
                    "{said}, request {request} ({}): {moments:?}",
                    requests[request]
                );
            }
        }
    }

    /// Asserts that the external action of every message was done once and that every message has
    /// one effect, wherever its worker was killed.
    fn assert_once(&self) {
        for state in &self.0 {
            assert_eq!(
                (state.deeds, state.effects),
                (1, 1),
                "{}: {:?}",
                state.outcome,
                state.notes
            );
        }
    }

    fn max_deeds(&self) -> usize {
        self.0
            .iter()
            .map(|state| state.deeds)
            .max()
            .unwrap_or_default()
    }
}

impl MessageState {
    /// Returns true if the worker was killed after `this` took effect and before `that` took
    /// effect.
    fn is_between(&self, this: &str, that: &str) -> bool {
        self.outcome
            .point
            .is_some_and(|point| self.has_passed(this, point) && !self.has_passed(that, point))
    }

    /// Returns true if `said` took effect before the worker was killed.
    fn has_passed(&self, said: &str, killed: Point) -> bool {
        effective_request(&self.outcome.requests, said).is_some_and(|request| {
            request < killed.request
                || request == killed.request && killed.moment >= Moment::Unheard
        })
    }

    /// Returns true if the result of the message depends on the kill point only. This is false when
    /// a slow worker has renewed its lease or has lost it.
    fn is_predictable(&self) -> bool {
        self.outcome.is_regular && !self.notes.iter().any(|note| note == "lost")
    }

    fn saw_unknown(&self) -> bool {
        self.notes.iter().any(|note| note == UNKNOWN)
    }
}

/// Returns the number of the request with which `said` takes effect. For a request to the database
/// this is the next commit.
fn effective_request(requests: &[String], said: &str) -> Option<usize> {
    let mut after = requests
        .iter()
        .enumerate()
        .skip_while(|(_, name)| !name.contains(said));
    let (request, name) = after.next()?;
    if !name.starts_with("database") {
        return Some(request);
    }
    let commit = format!("{}: COMMIT", name.split(':').next().unwrap_or_default());
    after
        .find(|(_, name)| **name == commit)
        .map(|(request, _)| request)
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

/// Returns the number of mails with this subject.
fn mails(sink: &MailSink, subject: &str) -> Result<usize> {
    let line = format!("Subject: {subject}\n");
    Ok(sink
        .mails()?
        .iter()
        .filter(|mail| mail.contains(&line))
        .count())
}

/// The start of the request that contains the text of a mail.
const MAIL: &str = "From: shop@example.org";

const BEGUN: &str = "idem_begin_call";
const FINISHED: &str = "idem_finish_call";

/// Runs workers that use the card gateway or the carrier.
async fn with_service(role: Role, name: &str) -> Result<(Run, Service)> {
    let (database, service) = (Database::with_idem(name).await?, Service::open().await?);
    let done = |message: &str| Ok(service.done(message));
    let run = Run::execute(role, &database, service.address(), done).await?;
    Ok((run, service))
}

/// Runs workers that use the mail server.
async fn with_mail(role: Role, name: &str) -> Result<Run> {
    let (database, sink) = (Database::with_idem(name).await?, MailSink::start()?);
    let sent = |message: &str| mails(&sink, message);
    Run::execute(role, &database, sink.address(), sent).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn card_is_charged_once_wherever_the_worker_is_killed() -> Result<()> {
    let (run, gateway) = with_service(Role::Card, "card").await?;
    run.assert_cut(&[
        "idem_acquire",
        BEGUN,
        "POST /charges",
        FINISHED,
        "idem_complete",
    ]);
    run.assert_once();
    assert!(
        gateway.repeats() >= 2,
        "the gateway did not receive a key again"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn card_is_charged_twice_without_a_journal() -> Result<()> {
    let (run, _) = with_service(Role::CardBare, "card_bare").await?;
    run.assert_cut(&["POST /charges", "COMMIT"]);
    assert_eq!(run.max_deeds(), 2);
    Ok(())
}

/// The carrier treats every booking as a new parcel, so the handler queries the carrier before it
/// books again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parcel_is_booked_once_wherever_the_worker_is_killed() -> Result<()> {
    let (run, _) = with_service(Role::Carrier, "carrier").await?;
    run.assert_cut(&[
        "idem_acquire",
        BEGUN,
        "POST /bookings",
        FINISHED,
        "idem_complete",
    ]);
    run.assert_once();
    for state in run.0.iter().filter(|state| state.is_predictable()) {
        assert_eq!(
            state.saw_unknown(),
            state.is_between(BEGUN, FINISHED),
            "{}",
            state.outcome
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parcel_is_booked_twice_without_a_journal() -> Result<()> {
    let (run, _) = with_service(Role::CarrierBare, "carrier_bare").await?;
    run.assert_cut(&["POST /bookings", "COMMIT"]);
    assert_eq!(run.max_deeds(), 2);
    Ok(())
}

/// A mail server accepts no idempotency key and cannot be queried, so exactly-once is not possible.
/// A second mail is sent only after a kill between sending and recording, and the journal has then
/// told the handler that the result of the first attempt is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_mail_follows_only_a_kill_before_recording() -> Result<()> {
    let run = with_mail(Role::Mail, "mail").await?;
    run.assert_cut(&[
        "idem_acquire",
        BEGUN,
        "DATA",
        MAIL,
        FINISHED,
        "idem_complete",
    ]);
    for state in &run.0 {
        assert!(state.deeds >= 1, "no mail was sent: {}", state.outcome);
        assert_eq!(state.effects, 1, "{}", state.outcome);
        if state.is_predictable() {
            let expected = if state.is_between(MAIL, FINISHED) {
                2
            } else {
                1
            };
            assert_eq!(state.deeds, expected, "{}", state.outcome);
            assert_eq!(
                state.saw_unknown(),
                state.is_between(BEGUN, FINISHED),
                "{}",
                state.outcome
            );
        }
    }
    assert_eq!(
        run.max_deeds(),
        2,
        "some kills were between sending and recording"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_that_gives_up_unknown_calls_sends_no_second_mail() -> Result<()> {
    let run = with_mail(Role::MailOnce, "mail_once").await?;
    run.assert_cut(&[
        "idem_acquire",
        BEGUN,
        "DATA",
        MAIL,
        FINISHED,
        "idem_complete",
    ]);
    for state in &run.0 {
        assert!(state.deeds <= 1, "{}", state.outcome);
        assert_eq!(
            state.effects,
            i64::from(!state.is_dead),
            "the message is handled or is a dead letter: {}",
            state.outcome
        );
        if state.is_predictable() {
            assert_eq!(
                state.is_dead,
                state.is_between(BEGUN, FINISHED),
                "{}",
                state.outcome
            );
            assert_eq!(
                state.deeds == 0,
                state.is_between(BEGUN, MAIL),
                "{}",
                state.outcome
            );
        }
    }
    Ok(())
}

/// Without a journal a second mail is sent, and the handler gets no sign of the first attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mail_is_sent_twice_without_a_journal() -> Result<()> {
    let run = with_mail(Role::MailBare, "mail_bare").await?;
    run.assert_cut(&["DATA", MAIL, "COMMIT"]);
    assert_eq!(run.max_deeds(), 2);
    assert!(!run.0.iter().any(MessageState::saw_unknown));
    Ok(())
}
