//! Tests of I4 and I5: every relay reads every committed effect, however late the effect commits,
//! and the outbox keeps each effect until all relays have read it.

mod aside;
mod bytes;
mod facts;
mod floor;
mod hand_over;
mod idle;
mod late;
mod leases;
mod parked;
mod partitions;
mod progress;
mod reader;
mod recovery;
mod rotation;
mod sequences;
mod traffic;
mod wake;
