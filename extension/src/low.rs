//! Where the first message of a destination was when this session looked last.
//!
//! Messages that are done leave entries at the head of the index, and as long as somebody keeps an old snapshot nothing can take them
//! away: who walks from the very beginning walks over all of them, each time. So `idem_next` starts where it found the first message
//! last time. Only a transaction that was open then can bring one from before; therefore it looks at the whole now and then, and
//! always before it says that there is nothing.

use crate::errors::given;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Looks at the whole may take this share of the time, and come no more often than this.
const SHARE: u32 = 50;
const OFTEN: Duration = Duration::from_millis(50);
/// A session that serves more destinations than this starts over.
const DESTINATIONS: usize = 1_000;

struct Low {
    at: pg_sys::TimestampTz,
    whole_look_due: Instant,
    /// When the look that is under way began, and whether it is one at the whole.
    began: Instant,
    whole: bool,
}

thread_local! {
    static LOWS: RefCell<HashMap<i32, Low>> = RefCell::default();
}

/// Where to begin to look: -infinity when a look at the whole is due.
// timestamptz and int8 are the same 64 bits to the function manager.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.low_mark(destination integer) RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'low_mark_wrapper';
"#
)]
fn low_mark(destination: Option<i32>) -> Result<i64, ErrorReport> {
    let destination = given(destination, "destination")?;
    let now = Instant::now();
    Ok(LOWS.with_borrow_mut(|lows| {
        if lows.len() >= DESTINATIONS {
            lows.clear();
        }
        let low = lows.entry(destination).or_insert(Low {
            at: pg_sys::TimestampTz::MIN,
            whole_look_due: now,
            began: now,
            whole: true,
        });
        low.began = now;
        low.whole = now >= low.whole_look_due;
        if low.whole { pg_sys::TimestampTz::MIN } else { low.at }
    }))
}

/// The look that `low_mark` began found its first message there.
#[pg_extern(
    requires = ["schema"],
    sql = r#"
CREATE FUNCTION idem.note_low(destination integer, first_due timestamptz) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'note_low_wrapper';
"#
)]
fn note_low(destination: Option<i32>, first_due: Option<i64>) -> Result<(), ErrorReport> {
    let destination = given(destination, "destination")?;
    // Nothing is due: the next look begins where this one did.
    let Some(first_due) = first_due else {
        return Ok(());
    };
    LOWS.with_borrow_mut(|lows| {
        if let Some(low) = lows.get_mut(&destination) {
            low.at = first_due;
            if low.whole {
                low.whole_look_due = Instant::now() + (low.began.elapsed() * SHARE).max(OFTEN);
            }
        }
    });
    Ok(())
}
