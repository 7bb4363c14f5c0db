//! I5: each of several relays reads every effect. The partitions of one relay share the effects,
//! and the effects of a key keep their order.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use idem_testkit::Database;

use super::reader::{Effect, Reader, send, send_key};

#[tokio::test]
async fn i5_each_relay_reads_every_effect() -> Result<()> {
    let db = Database::with_idem("two").await?;
    let session = db.connect().await?;
    session.run("SELECT idem_create_relay('second')").await?;
    for says in ["a", "b", "c"] {
        send(&session, says).await?;
    }
    let (first, second) = (
        Reader::of(&db, "default").await?,
        Reader::of(&db, "second").await?,
    );
    let to_first = first.drain().await?;
    assert_eq!(
        to_first.iter().map(|e| &e.says).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    assert_eq!(
        second.drain().await?,
        to_first,
        "the same effects, the same ids"
    );
    Ok(())
}

#[tokio::test]
async fn i5_each_effect_is_in_one_partition_and_keys_keep_order() -> Result<()> {
    const PARTITIONS: i32 = 4;
    const KEYS: i32 = 40;
    const ROUNDS: i32 = 5;
    let db = Database::with_idem("split").await?;
    let session = db.connect().await?;
    session
        .run(&format!("SELECT idem_create_relay('split', {PARTITIONS})"))
        .await?;
    for round in 0..ROUNDS {
        for key in 0..KEYS {
            send_key(&session, &format!("k{key}"), &round.to_string()).await?;
        }
        send(&session, "without a key").await?;
    }

    let mut partitions: Vec<Vec<Effect>> = Vec::new();
    for partition in 0..PARTITIONS {
        let reader = Reader::of(&db, "split")
            .await?
            .partition(partition)
            .limit(7);
        partitions.push(reader.drain().await?);
    }

    let all: BTreeSet<_> = partitions
        .iter()
        .flatten()
        .map(|effect| effect.message_id)
        .collect();
    let sum: usize = partitions.iter().map(Vec::len).sum();
    assert_eq!(sum, all.len(), "no effect is in two partitions");
    assert_eq!(
        sum,
        (ROUNDS * (KEYS + 1)) as usize,
        "each effect is in a partition"
    );
    assert!(partitions.iter().all(|partition| !partition.is_empty()));

    let mut seen_in: BTreeMap<&str, usize> = BTreeMap::new();
    for (n, partition) in partitions.iter().enumerate() {
        let mut by_key: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for effect in partition {
            if let Some(key) = &effect.key {
                by_key.entry(key).or_default().push(&effect.says);
            }
        }
        for (key, says) in by_key {
            assert_eq!(says, ["0", "1", "2", "3", "4"], "the order of {key}");
            assert_eq!(
                seen_in.insert(key, n),
                None,
                "{key} is in one partition only"
            );
        }
    }
    assert_eq!(seen_in.len(), KEYS as usize);
    Ok(())
}

/// I5: there can be more effects between two snapshots than fit into one batch. The relay then
/// continues by `seq` between the same snapshots. It loses and repeats no effect, also when a
/// transaction commits late.
#[tokio::test]
async fn i5_batch_limit_inside_snapshot_pair_loses_no_effect() -> Result<()> {
    for limit in [1, 2, 3, 5] {
        let db = Database::with_idem("limit").await?;
        let (late, other) = (db.connect().await?, db.connect().await?);
        let relay = Reader::of(&db, "default").await?.limit(limit);
        late.run("BEGIN").await?;
        send(&late, "late 1").await?;
        send(&other, "1").await?;
        send(&late, "late 2").await?;
        assert_eq!(relay.drained().await?, ["1"]);
        for says in ["2", "3"] {
            send(&other, says).await?;
        }
        send(&late, "late 3").await?;
        late.run("COMMIT").await?;
        for says in ["4", "5"] {
            send(&other, says).await?;
        }
        let first = relay.batch().await?;
        assert_eq!(first.effects.len() as i32, limit);
        // This effect belongs to the next pair of snapshots, although the relay has not read all
        // effects of the current pair.
        send(&other, "6").await?;
        relay.ack(first.token).await?;
        let mut says: Vec<_> = first.effects.into_iter().map(|e| e.says).collect();
        says.extend(relay.drained().await?);
        assert_eq!(
            says,
            ["late 1", "late 2", "2", "3", "late 3", "4", "5", "6"],
            "with at most {limit} effects in a batch"
        );
    }
    Ok(())
}
