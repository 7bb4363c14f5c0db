//! Finds the file that defines the name at the end of a path.

use super::circles::Used;
use super::source::{Crate, Kind, Mention};

/// The largest number of imports that are followed for one path. A longer chain of imports exists
/// only if imports refer to each other in a circle.
const MAX_IMPORTS: usize = 8;

/// What a path leads to.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// A name that this module defines.
    Item(usize),
}

/// Returns which file uses which.
pub fn uses(tree: &Crate) -> Vec<Used> {
    let mut uses = Vec::new();
    for (index, module) in tree.modules.iter().enumerate() {
        for mention in &module.mentions {
            let Some(to) = defining_module(tree, index, mention) else {
                continue;
            };
            // A module that re-exports names of its own children is their façade for other modules.
            // Such a re-export is not a use.
            let is_facade = mention.kind == Kind::Reexport && is_below(tree, to, index);
            if !is_facade && tree.modules[to].file != module.file {
                uses.push(Used {
                    from: module.file.clone(),
                    to: tree.modules[to].file.clone(),
                    line: mention.line,
                });
            }
        }
    }
    uses
}

fn is_below(tree: &Crate, mut module: usize, ancestor: usize) -> bool {
    while let Some(parent) = tree.modules[module].parent {
        if parent == ancestor {
            return true;
        }
        module = parent;
    }
    false
}

/// Returns the module that defines the name at the end of a path. Returns `None` if the path leads
/// to a module or to another crate.
fn defining_module(tree: &Crate, from: usize, mention: &Mention) -> Option<usize> {
    match resolve(tree, from, &mention.path, MAX_IMPORTS)? {
        Target::Item(module) => Some(module),
        Target::Module(_) => None,
    }
}

/// Follows a path from a module. Returns `None` for a name of another crate, and for a name that no
/// module of this crate declares.
fn resolve(tree: &Crate, from: usize, path: &[String], imports: usize) -> Option<Target> {
    let (first, mut rest) = path.split_first()?;
    let mut at = match first.as_str() {
        "crate" => Target::Module(0),
        "self" => Target::Module(from),
        "super" => Target::Module(tree.modules[from].parent?),
        name => look_up(tree, from, name, rest.is_empty(), imports)?,
    };
    while let (Target::Module(module), Some((name, others))) = (at, rest.split_first()) {
        rest = others;
        at = match name.as_str() {
            "super" => Target::Module(tree.modules[module].parent?),
            name => look_up(tree, module, name, rest.is_empty(), imports)?,
        };
    }
    Some(at)
}

/// Looks a name up in a module. A module and a function can have the same name: the last name of a
/// path means the function.
fn look_up(
    tree: &Crate,
    module: usize,
    name: &str,
    is_last: bool,
    imports: usize,
) -> Option<Target> {
    let imports = imports.checked_sub(1)?;
    let scope = &tree.modules[module];
    let child = || scope.children.get(name).map(|child| Target::Module(*child));
    let item = || scope.items.contains(name).then_some(Target::Item(module));
    let import = || resolve(tree, module, scope.imports.get(name)?, imports);
    let glob = || {
        scope
            .globs
            .iter()
            .find_map(|path| match resolve(tree, module, path, imports)? {
                Target::Module(other) if other != module => {
                    look_up(tree, other, name, is_last, imports)
                }
                _ => None,
            })
    };
    if is_last {
        item().or_else(import).or_else(child).or_else(glob)
    } else {
        child().or_else(import).or_else(item).or_else(glob)
    }
}
