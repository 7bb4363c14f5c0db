//! I4 and I5: every relay reads every committed effect, whenever it commits, and the outbox forgets
//! no effect before that.

mod aside;
mod bytes;
mod facts;
mod floor;
mod hand_over;
mod late;
mod leases;
mod parked;
mod partitions;
mod progress;
mod reader;
mod recovery;
mod rotation;
mod traffic;
mod wake;
