//! Reads which names the modules of a crate declare, and which paths they use.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, Meta, Token, UseTree, VisRestricted};
use syn::{ext::IdentExt as _, punctuated::Punctuated};

use super::Files;

/// The modules of a crate. The first one is the root.
#[derive(Default)]
pub struct Crate {
    pub modules: Vec<Module>,
}

/// A module: a file, or a module with a body inside a file.
#[derive(Default)]
pub struct Module {
    pub file: String,
    pub parent: Option<usize>,
    /// The names that the module defines, apart from modules.
    pub items: HashSet<String>,
    pub children: HashMap<String, usize>,
    /// The imported names, with the path of each.
    pub imports: HashMap<String, Vec<String>>,
    /// The modules of which all names are imported.
    pub globs: Vec<Vec<String>>,
    pub mentions: Vec<Mention>,
}

/// A path in a module.
pub struct Mention {
    pub path: Vec<String>,
    pub line: usize,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A path in code, or a private import.
    Use,
    /// An import that is visible outside of the module.
    Reexport,
}

impl Crate {
    /// Parses the file `root`, and the files of the modules that it declares.
    pub fn parse(files: &Files, root: &str) -> Result<Self> {
        let mut tree = Self::default();
        tree.add_file(files, root, "", None)?;
        Ok(tree)
    }

    /// Adds the module of a file. The files of its children are in `directory`.
    fn add_file(
        &mut self,
        files: &Files,
        file: &str,
        directory: &str,
        parent: Option<usize>,
    ) -> Result<usize> {
        let text = files
            .get(file)
            .with_context(|| format!("{file} is not among the files"))?;
        let parsed = syn::parse_file(text).with_context(|| format!("cannot parse {file}"))?;
        self.add(files, &parsed.items, file, directory, parent)
    }

    fn add(
        &mut self,
        files: &Files,
        items: &[Item],
        file: &str,
        directory: &str,
        parent: Option<usize>,
    ) -> Result<usize> {
        let mut reader = Reader::default();
        reader.module.file = file.to_owned();
        reader.module.parent = parent;
        for item in items {
            reader.item(item);
        }
        let index = self.modules.len();
        self.modules.push(reader.module);
        for child in reader.children {
            let name = child.ident.unraw().to_string();
            let below = format!("{directory}{name}/");
            let added = match &child.content {
                Some((_, items)) => self.add(files, items, file, &below, Some(index))?,
                None => {
                    let own_file = format!("{directory}{name}.rs");
                    let found = if files.contains_key(&own_file) {
                        own_file
                    } else {
                        format!("{below}mod.rs")
                    };
                    self.add_file(files, &found, &below, Some(index))?
                }
            };
            self.modules[index].children.insert(name, added);
        }
        Ok(index)
    }
}

/// Collects the names and paths of one module.
#[derive(Default)]
struct Reader<'a> {
    module: Module,
    children: Vec<&'a ItemMod>,
    /// The number of functions and blocks around the current item. Imports inside of a function do
    /// not import names into the module.
    depth: usize,
}

impl<'a> Reader<'a> {
    /// Reads an item of the module itself.
    fn item(&mut self, item: &'a Item) {
        match item {
            Item::Mod(child) => {
                if !is_for_tests(&child.attrs) {
                    self.children.push(child);
                }
            }
            item => {
                if let Some(name) = name_of(item) {
                    self.module.items.insert(name);
                }
                self.visit_item(item);
            }
        }
    }

    fn mention(&mut self, path: Vec<String>, line: usize, kind: Kind) {
        self.module.mentions.push(Mention { path, line, kind });
    }

    /// Reads a tree of imports below the path `prefix`.
    fn imports(&mut self, tree: &UseTree, mut prefix: Vec<String>, kind: Kind) {
        let (last, renamed) = match tree {
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.imports(tree, prefix.clone(), kind);
                }
                return;
            }
            UseTree::Path(path) => {
                prefix.push(path.ident.unraw().to_string());
                return self.imports(&path.tree, prefix, kind);
            }
            UseTree::Glob(glob) => {
                let line = glob.star_token.span.start().line;
                self.mention(prefix.clone(), line, kind);
                if self.depth == 0 {
                    self.module.globs.push(prefix);
                }
                return;
            }
            UseTree::Name(name) => (&name.ident, None),
            UseTree::Rename(rename) => (&rename.ident, Some(rename.rename.unraw().to_string())),
        };
        // `use a::b::{self}` imports `b`.
        if last != "self" || prefix.is_empty() {
            prefix.push(last.unraw().to_string());
        }
        let name = renamed.or_else(|| prefix.last().cloned());
        self.mention(prefix.clone(), last.span().start().line, kind);
        if let (Some(name), 0) = (name, self.depth) {
            self.module.imports.insert(name, prefix);
        }
    }

    /// Reads the paths in the arguments of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut line = 0;
        for token in tokens {
            match &token {
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => {
                    path.push(ident.unraw().to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.mention(std::mem::take(&mut path), line, Kind::Use);
                    colons = 0;
                    match other {
                        TokenTree::Ident(ident) => {
                            line = ident.span().start().line;
                            path.push(ident.unraw().to_string());
                        }
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        _ => {}
                    }
                }
            }
        }
        self.mention(path, line, Kind::Use);
    }
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let kind = match item.vis {
            syn::Visibility::Inherited => Kind::Use,
            _ => Kind::Reexport,
        };
        self.imports(&item.tree, Vec::new(), kind);
    }

    fn visit_block(&mut self, block: &'a syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let name = |part: &syn::PathSegment| part.ident.unraw().to_string();
        let names = path.segments.iter().map(name).collect();
        let first = path.segments.first();
        let line = first.map_or(0, |part| part.ident.span().start().line);
        self.mention(names, line, Kind::Use);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    // The path in `pub(in path)` is not a use.
    fn visit_vis_restricted(&mut self, _: &'a VisRestricted) {}

    // Attributes are not code. Documentation, with its links to names, is an attribute too.
    fn visit_attribute(&mut self, _: &'a Attribute) {}
}

/// Returns whether the item exists in tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .any(|attribute| attribute.parse_args().is_ok_and(|meta| needs_test(&meta)))
}

/// Returns whether the condition holds in tests only.
fn needs_test(condition: &Meta) -> bool {
    let parts = || -> Vec<Meta> {
        let list = condition.require_list().ok();
        let parts = list.and_then(|list| {
            list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                .ok()
        });
        parts.into_iter().flatten().collect()
    };
    match condition.path() {
        path if path.is_ident("test") => true,
        path if path.is_ident("all") => parts().iter().any(needs_test),
        path if path.is_ident("any") => !parts().is_empty() && parts().iter().all(needs_test),
        _ => false,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.unraw().to_string())
}
