//! Poison messages: each must become exactly one dead letter with the right error. Some are
//! repaired and requeued, and must then be handled exactly once.

use std::time::Duration;

use anyhow::Result;
use idem_runtime::{OutgoingMessage, Publisher};
use rand::{RngExt, rngs::StdRng};
use uuid::Uuid;

use crate::site::{SentPoison, Site};
use idem_demo::range::live::{
    place::{self, COMMANDS},
    poison::Poison,
    post::TARGETS,
    work::wiring::BrokerPublisher,
};

/// The number of messages of each kind in a burst.
const OF_EACH: usize = 3;

/// The longest time in which a poison message must become a dead letter.
const PATIENCE: Duration = Duration::from_secs(40);

/// Sends poison messages of each kind, and repairs and requeues those that can be repaired. Each
/// message with an id is sent twice.
pub(super) async fn burst(site: &Site, dice: &mut StdRng) -> Result<bool> {
    let burst: Vec<_> = Poison::ALL
        .into_iter()
        .cycle()
        .take(OF_EACH * Poison::ALL.len())
        .map(|poison| SentPoison {
            poison,
            id: Uuid::from_u128(dice.random()),
            repaired: poison == Poison::Repairable,
        })
        .collect();
    send(site, &burst).await?;
    site.note_poison(burst.iter().cloned());
    let repaired = burst.iter().filter(|sent| sent.repaired);
    let repaired: Vec<Uuid> = repaired.map(|sent| sent.id).collect();
    repair(site, &repaired).await
}

/// Sends each message, and then sends the messages with an id a second time. A message without an
/// id is sent only once, because a second copy would be a different message.
async fn send(site: &Site, burst: &[SentPoison]) -> Result<()> {
    let publisher = BrokerPublisher::new(site.kind, &site.broker_url);
    let again = burst.iter().filter(|sent| sent.poison != Poison::WithoutId);
    for sent in burst.iter().chain(again) {
        let payload = sent.poison.payload(sent.id)?;
        if sent.poison == Poison::WithoutId {
            place::send_without_id(site.kind, &site.broker_url, payload).await?;
            continue;
        }
        let mut message = OutgoingMessage::new(sent.id, COMMANDS, payload);
        message.message_type = Some(sent.poison.message_type().to_owned());
        publisher.publish(&message).await?;
    }
    Ok(())
}

/// Waits for the dead letters of these ids, repairs the messages, and requeues them. Returns
/// whether all dead letters were found.
async fn repair(site: &Site, ids: &[Uuid]) -> Result<bool> {
    let ids: Vec<String> = ids.iter().map(|id| format!("'{id}'")).collect();
    let (count, list) = (ids.len(), ids.join(", "));
    let letters = format!(
        "SELECT count(*) = {count} FROM idem.dead_letters
          WHERE destination = '{TARGETS}' AND id IN ({list})"
    );
    // A missing dead letter does not end the campaign: with a planted bug a message can be lost,
    // and the checker must report it.
    let died = site
        .until("the poison becomes dead letters", PATIENCE, &letters)
        .await;
    if let Err(error) = &died {
        eprintln!("{error:#}");
    }
    site.insist(&format!(
        "INSERT INTO repaired SELECT id::uuid FROM unnest(ARRAY[{list}]) id;
         SELECT idem_requeue(id, '{TARGETS}') FROM unnest(ARRAY[{list}]) id"
    ))
    .await?;
    Ok(died.is_ok())
}
