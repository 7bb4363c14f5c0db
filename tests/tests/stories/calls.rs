//! Calls to something outside of the database, by workers that are killed at every step.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Result, ensure};
use idem_brokers::MailSink;
use idem_tests::{
    harness::Database,
    stories::{
        Drill, Moment, Outcome,
        outside::{Carrier, Gateway},
        work::Role,
    },
};

use crate::WORKER;

/// Every point of a story, and how often the deed was done then.
struct Told(Vec<(Outcome, usize)>);

impl Told {
    fn new(title: &str, outcomes: Vec<Outcome>, deeds: impl Fn(&str) -> usize) -> Self {
        let told: Vec<_> = outcomes
            .into_iter()
            .map(|outcome| {
                let count = deeds(&outcome.message);
                (outcome, count)
            })
            .collect();
        eprintln!("{title}: where the worker was killed, and how often it was done");
        for (outcome, count) in &told {
            eprintln!("{outcome:<70} {count}");
        }
        Self(told)
    }

    /// All of these were begun, and each was cut at every moment.
    fn has_cut(&self, said: &[&str]) {
        for said in said {
            let cut: BTreeSet<_> = self.points_of(said).map(|(moment, _)| moment).collect();
            assert_eq!(cut.len(), 4, "{said}: {cut:?}");
        }
    }

    fn points_of<'t>(&'t self, said: &'t str) -> impl Iterator<Item = (Moment, usize)> + 't {
        self.0
            .iter()
            .filter(move |(outcome, _)| outcome.said().is_some_and(|words| words.ends_with(said)))
            .filter_map(|(outcome, count)| Some((outcome.point?.moment, *count)))
    }

    /// The messages for which it was not done exactly once.
    fn not_once(&self) -> Vec<&(Outcome, usize)> {
        self.0.iter().filter(|(_, count)| *count != 1).collect()
    }
}

async fn tell(role: Role, database: &Database, outside: std::net::SocketAddr) -> Result<Vec<Outcome>> {
    let drill = Drill {
        program: Path::new(WORKER),
        role,
        database,
        outside,
    };
    let outcomes = drill.every_point().await?;
    // Whatever became of the outside: to the database each message is done.
    let handled = database
        .connect()
        .await?
        .query_one("SELECT pg_catalog.count(*) FROM idem.inbox", &[])
        .await?
        .get::<_, i64>(0);
    ensure!(
        handled == i64::try_from(outcomes.len())?,
        "{handled} handled of {}",
        outcomes.len()
    );
    Ok(outcomes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_is_charged_twice_without_a_journal() -> Result<()> {
    let (database, gateway) = (Database::with_idem("card_bare").await?, Gateway::open().await?);
    let outcomes = tell(Role::CardBare, &database, gateway.address()).await?;
    let told = Told::new("card, without a journal", outcomes, |message| gateway.charges(message));
    told.has_cut(&["POST /charges", "COMMIT"]);
    assert!(told.not_once().iter().any(|(_, count)| *count == 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_is_sent_twice_without_a_journal() -> Result<()> {
    let (database, sink) = (Database::with_idem("mail_bare").await?, MailSink::start()?);
    let outcomes = tell(Role::MailBare, &database, sink.address()).await?;
    let mails = sink.mails()?;
    let told = Told::new("mail, without a journal", outcomes, |message| {
        mails
            .iter()
            .filter(|mail| mail.contains(&format!("Subject: {message}")))
            .count()
    });
    assert!(told.not_once().iter().any(|(_, count)| *count == 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parcel_is_booked_twice_without_a_journal() -> Result<()> {
    let (database, carrier) = (Database::with_idem("carrier_bare").await?, Carrier::open().await?);
    let outcomes = tell(Role::CarrierBare, &database, carrier.address()).await?;
    let told = Told::new("carrier, without a journal", outcomes, |message| carrier.bookings(message));
    assert!(told.not_once().iter().any(|(_, count)| *count == 2));
    Ok(())
}
