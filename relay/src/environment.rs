//! The environment variables of the program. The arguments name them.

use std::{collections::BTreeSet, env};

use anyhow::{Result, bail};
use clap::Command;

/// The beginning of the names of all variables.
const PREFIX: &str = "IDEM_RELAY_";

/// Returns the command without its empty variables, so that an empty variable is not set.
pub fn without_empty(command: Command) -> Command {
    command.mut_args(|argument| {
        let value = argument.get_env().and_then(env::var_os);
        match value.is_some_and(|value| value.is_empty()) {
            true => argument.env(None::<&str>),
            false => argument,
        }
    })
}

/// Fails if the environment has a variable that begins as those of the program and is none of them.
/// The error names the nearest variable, or the nearest of these settings of the file.
pub fn check(command: &Command, in_the_file: &[&str]) -> Result<()> {
    let names = env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let names: BTreeSet<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    let variables = command.get_arguments().filter_map(|argument| {
        let variable = argument.get_env()?.to_str()?;
        Some((variable, argument.get_id().as_str()))
    });
    let variables: Vec<_> = variables.collect();
    for name in &names {
        let is_known = variables.iter().any(|(variable, _)| variable == name);
        if !is_known && !is_of_kubernetes(name, &names) {
            let nearest = nearest(name, &variables, in_the_file);
            bail!("{name} is not a variable of idem-relay: the nearest setting is {nearest}");
        }
    }
    Ok(())
}

/// Returns whether Kubernetes has set this variable, for a service that is named like the program.
fn is_of_kubernetes(name: &str, names: &BTreeSet<String>) -> bool {
    ["_SERVICE_", "_PORT"].iter().any(|middle| {
        name.match_indices(middle)
            .any(|(end, _)| names.contains(&format!("{}_SERVICE_HOST", &name[..end])))
    })
}

/// Returns the variable, or the setting of the file, whose name is nearest to the name of a
/// variable.
fn nearest(name: &str, variables: &[(&str, &str)], in_the_file: &[&str]) -> String {
    let wanted = name.trim_start_matches(PREFIX);
    // An argument has two names: `relay` is IDEM_RELAY_NAME.
    let of_variables = variables.iter().flat_map(|(variable, argument)| {
        let forms = [variable.trim_start_matches(PREFIX), argument];
        forms.map(|form| (form.to_uppercase(), (*variable).to_owned()))
    });
    let of_the_file = in_the_file.iter().flat_map(|setting| {
        let last = setting.rsplit('.').next().unwrap_or(setting);
        [*setting, last].map(|form| {
            let form = form.replace(['.', '-'], "_").to_uppercase();
            (form, format!("{setting} in the settings file (--config)"))
        })
    });
    of_variables
        .chain(of_the_file)
        .max_by(|(one, _), (other, _)| {
            let likeness = |form: &str| strsim::jaro_winkler(wanted, form);
            likeness(one).total_cmp(&likeness(other))
        })
        .map(|(_, shown)| shown)
        .unwrap_or_default()
}
