//! Effects: the outgoing messages that a consumer sends while it processes a message. They are
//! recorded with the claim of that message and returned to every duplicate of it.

mod read;
mod record;
mod replay;
mod send;

pub use read::recorded;
pub use record::record;
pub use replay::replay;
pub use send::{Sent, send};

use crate::errors::Result;
use crate::settings::check_payload;
use crate::sql_types::JsonText;
use idem_core::{EffectSpec, parse_effects};

/// Parses the effects argument of a function.
pub fn parse(effects: &JsonText) -> Result<Vec<EffectSpec<'_>>> {
    let effects = parse_effects(effects.as_str(), || {
        pgrx::check_for_interrupts!();
    })?;
    for effect in &effects {
        check_payload(effect.payload.bytes().len())?;
    }
    Ok(effects)
}
