//! The public API against the list in `api.txt`, so that every change of the API shows up in that
//! file.
//!
//! Everything that is `pub` in the sources is public, because of the lint `unreachable_pub`, unless
//! it is hidden from the documentation. The list has multinet-rails too, which the library
//! re-exports.
//! `UPDATE=1` rewrites the file.

mod examples;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use quote::ToTokens as _;
use syn::{Attribute, Fields, ImplItem, Item, ItemTrait, TraitItem, Type, Visibility};

#[test]
fn the_public_api_is_as_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lines = BTreeSet::new();
    for path in ["src", "rails/src"].into_iter().flat_map(|folder| sources(&root.join(folder))) {
        let source = fs::read_to_string(&path).expect("a source can be read");
        let file = syn::parse_file(&source).expect("a source that compiles can be parsed");
        file.items.iter().for_each(|item| list(item, &mut lines));
    }
    let listed: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let path = root.join("api.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &listed).expect("api.txt can be written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let removed: Vec<_> = expected.lines().filter(|line| !lines.contains(*line)).collect();
    let added: Vec<_> = lines.iter().filter(|line| !expected.lines().any(|old| old == *line)).collect();
    assert!(
        removed.is_empty() && added.is_empty(),
        "the public API differs from client-lib/api.txt; if the change is intended:\n\
         UPDATE=1 cargo test -p multinet-client --test it api::\nremoved: {removed:#?}\nadded: {added:#?}",
    );
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| !path.components().any(|part| part.as_os_str() == "tests"))
        .collect()
}

fn list(item: &Item, lines: &mut BTreeSet<String>) {
    if attributes(item).is_some_and(is_hidden) {
        return;
    }
    let mut add = |line: String| {
        lines.insert(tidy(&line));
    };
    match item {
        Item::Fn(item) if is_public(&item.vis) => add(item.sig.to_token_stream().to_string()),
        Item::Const(item) if is_public(&item.vis) => {
            add(format!("const {}: {}", item.ident, item.ty.to_token_stream()));
        }
        Item::Type(item) if is_public(&item.vis) => {
            add(format!("type {} = {}", item.ident, item.ty.to_token_stream()));
        }
        Item::Trait(item) if is_public(&item.vis) => {
            add(format!("trait {}", undocumented(item).to_token_stream()));
        }
        // The module for the fuzz targets exists only in their build.
        Item::Mod(item) if item.ident == "fuzzing" => {}
        Item::Mod(item) if is_public(&item.vis) => add(format!("mod {}", item.ident)),
        Item::Struct(item) if is_public(&item.vis) => {
            add(format!("struct {}{}{}", item.ident, item.generics.to_token_stream(), open(&item.attrs)));
            for field in item.fields.iter().filter(|field| is_public(&field.vis)) {
                let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                add(format!("struct {}.{name}: {}", item.ident, field.ty.to_token_stream()));
            }
        }
        Item::Enum(item) if is_public(&item.vis) => {
            add(format!("enum {}{}", item.ident, open(&item.attrs)));
            for variant in &item.variants {
                add(format!("enum {}::{}{}", item.ident, variant.ident, fields(&variant.fields)));
            }
        }
        Item::Impl(item) => {
            let of = name(&item.self_ty);
            match &item.trait_ {
                Some((_, path, _)) => add(format!("impl {} for {of}", path.to_token_stream())),
                None => item.items.iter().for_each(|member| match member {
                    ImplItem::Fn(method) if is_public(&method.vis) && !is_hidden(&method.attrs) => {
                        add(format!("{of}::{}", method.sig.to_token_stream()));
                    }
                    ImplItem::Const(constant) if is_public(&constant.vis) => {
                        add(format!("{of}::const {}: {}", constant.ident, constant.ty.to_token_stream()));
                    }
                    _ => {}
                }),
            }
        }
        _ => {}
    }
}

fn attributes(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Fn(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        _ => return None,
    })
}

/// Returns whether an item is left out of the documentation, as plumbing between crates is.
fn is_hidden(attributes: &[Attribute]) -> bool {
    let is_hidden = |attribute: &Attribute| {
        attribute.path().is_ident("doc") && attribute.to_token_stream().to_string().contains("(hidden)")
    };
    attributes.iter().any(is_hidden)
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Returns a trait without its documentation.
fn undocumented(item: &ItemTrait) -> ItemTrait {
    let is_code = |attribute: &Attribute| !attribute.path().is_ident("doc");
    let mut item = item.clone();
    item.attrs.retain(is_code);
    for member in &mut item.items {
        if let TraitItem::Fn(method) = member {
            method.attrs.retain(is_code);
        }
    }
    item
}

/// Returns the mark of a type that other crates cannot construct or match exhaustively.
fn open(attributes: &[Attribute]) -> &'static str {
    let is_open = attributes.iter().any(|attribute| attribute.path().is_ident("non_exhaustive"));
    if is_open { " (non-exhaustive)" } else { "" }
}

fn fields(fields: &Fields) -> String {
    let list = fields.iter().map(|field| match &field.ident {
        Some(name) => format!("{name}: {}", field.ty.to_token_stream()),
        None => field.ty.to_token_stream().to_string(),
    });
    let list = list.collect::<Vec<_>>().join(", ");
    match fields {
        Fields::Unit => String::new(),
        Fields::Named(_) => format!(" {{ {list} }}"),
        Fields::Unnamed(_) => format!("({list})"),
    }
}

fn name(of: &Type) -> String {
    of.to_token_stream().to_string()
}

/// Returns the tokens with the spaces of formatted code.
fn tidy(line: &str) -> String {
    let mut line = line.to_owned();
    for (from, to) in [
        (" :: ", "::"),
        (" < ", "<"),
        (" > ", "> "),
        (" >", ">"),
        ("< ", "<"),
        (" , ", ", "),
        (" ,", ","),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("& ", "&"),
        (" : ", ": "),
        (" ;", ";"),
        ("[ ", "["),
        (" ]", "]"),
        ("> (", ">("),
        ("-> ", " -> "),
        ("  ", " "),
        ("' ", "'"),
    ] {
        line = line.replace(from, to);
    }
    line.trim().to_owned()
}
