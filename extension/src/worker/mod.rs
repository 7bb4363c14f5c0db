//! The worker: it does what `CALL idem_maintain()` does, in every database that has the extension.
//!
//! The launcher starts with the server and is not connected to a database. For each database it
//! repeatedly starts a maintainer that connects, runs the due steps and ends: a permanent
//! connection would block DROP DATABASE. A maintainer ends when no step has work, and at the latest
//! after `idem.naptime`, so that other databases get their turn. It waits only briefly at a fence:
//! the list of the fence is stored, so the next maintainer continues the wait, and databases with
//! long transactions do not use up the processes of the server. Maintainers use at most half of
//! `max_worker_processes`, but at least two.
//!
//! DROP DATABASE, ALTER DATABASE RENAME and CREATE DATABASE TEMPLATE lock the database and then
//! wait for at most 5 s until no session is connected. The launcher looks for such a lock every 100
//! ms, ends the maintainer of this database, and starts none until the command has ended. A step
//! can end at any time: it is a transaction, and a scan for a filter is repeated. Launcher and
//! maintainers run on the primary only.

mod launcher;
mod maintainer;

pub use launcher::register;

use pgrx::pg_sys;

/// Lets SIGTERM end the process at the next interrupt check, even in the middle of a statement.
/// With the handler of pgrx, which only sets a flag, a fast shutdown would wait for the end of the
/// statement. The process would then have to return, and a background worker that returns normally
/// is never restarted.
fn end_on_sigterm() {
    unsafe extern "C-unwind" {
        #[link_name = "die"]
        fn postgres_die(signal: core::ffi::c_int);
    }
    // SAFETY: die is PostgreSQL's own SIGTERM handler (tcop/postgres.c), meant for this use.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(pg_sys::SIGTERM as i32, Some(postgres_die));
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(pg_sys::SIGTERM as i32, Some(postgres_die));
    }
}
