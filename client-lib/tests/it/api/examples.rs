//! Check that every public item has an example, which rustdoc compiles and, if it needs no second
//! NIC, runs.
//!
//! rustdoc's own lint (`missing_doc_code_examples`, for nightly compilers) is not enough: it skips
//! items that are public only by a `pub use`, as most are here, and demands examples for `impl`
//! blocks.

use std::fs;
use std::path::Path;

use syn::{Attribute, Expr, ExprLit, ImplItem, Item, Lit, Meta, TraitItem};

use super::{is_hidden, is_public, name, sources};

#[test]
fn every_public_item_has_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut bare = Vec::new();
    for path in ["src", "memory/src", "rails/src"].into_iter().flat_map(|folder| sources(&root.join(folder)))
    {
        let source = fs::read_to_string(&path).expect("a source can be read");
        let file = syn::parse_file(&source).expect("a source that compiles can be parsed");
        let mut found = Vec::new();
        without_example(&file.items, &mut found);
        let path = path.strip_prefix(root).unwrap_or(&path).display();
        bare.extend(found.into_iter().map(|item| format!("{path}: {item}")));
    }
    assert!(bare.is_empty(), "the documentation of these items has no example: {bare:#?}");
}

#[test]
fn only_code_that_rustdoc_compiles_counts_as_an_example() {
    let table = [
        ("/// One.\nfn f() {}", false),
        ("/// ```\n/// let a = 1;\n/// ```\nfn f() {}", true),
        ("/// ```no_run\n/// let a = 1;\n/// ```\nfn f() {}", true),
        ("/// ```text\n/// let a = 1;\n/// ```\nfn f() {}", false),
        ("/// ```ignore\n/// let a = 1;\n/// ```\nfn f() {}", false),
    ];
    for (source, expected) in table {
        let item: syn::ItemFn = syn::parse_str(source).expect("a function");
        assert_eq!(has_example(&item.attrs), expected, "{source}");
    }
}

/// Adds the names of public items, and of their members, that have no example.
fn without_example(items: &[Item], found: &mut Vec<String>) {
    let mut check = |is_public: bool, attributes: &[Attribute], name: String| {
        if is_public && !is_hidden(attributes) && !has_example(attributes) {
            found.push(name);
        }
    };
    for item in items {
        match item {
            Item::Fn(item) => check(is_public(&item.vis), &item.attrs, item.sig.ident.to_string()),
            Item::Const(item) => check(is_public(&item.vis), &item.attrs, item.ident.to_string()),
            Item::Struct(item) => check(is_public(&item.vis), &item.attrs, item.ident.to_string()),
            Item::Type(item) => check(is_public(&item.vis), &item.attrs, item.ident.to_string()),
            Item::Static(item) => check(is_public(&item.vis), &item.attrs, item.ident.to_string()),
            Item::Enum(item) => check(is_public(&item.vis), &item.attrs, item.ident.to_string()),
            Item::Trait(item) => {
                check(is_public(&item.vis), &item.attrs, item.ident.to_string());
                for member in &item.items {
                    if let TraitItem::Fn(method) = member {
                        let name = format!("{}::{}", item.ident, method.sig.ident);
                        check(is_public(&item.vis), &method.attrs, name);
                    }
                }
            }
            Item::Impl(item) if item.trait_.is_none() => {
                for member in &item.items {
                    let (visibility, attributes, ident) = match member {
                        ImplItem::Fn(method) => (&method.vis, &method.attrs, &method.sig.ident),
                        ImplItem::Const(constant) => (&constant.vis, &constant.attrs, &constant.ident),
                        _ => continue,
                    };
                    check(is_public(visibility), attributes, format!("{}::{ident}", name(&item.self_ty)));
                }
            }
            _ => {}
        }
    }
    for item in items {
        if let Item::Mod(module) = item
            && let Some((_, items)) = &module.content
        {
            without_example(items, found);
        }
    }
}

/// Returns whether the documentation has a code block that rustdoc compiles.
fn has_example(attributes: &[Attribute]) -> bool {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => match &doc.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let fences: Vec<String> =
        lines.filter_map(|line| line.trim().strip_prefix("```").map(str::to_owned)).collect();
    // Every other fence begins a block.
    fences
        .iter()
        .step_by(2)
        .any(|word| matches!(word.as_str(), "" | "no_run" | "should_panic" | "compile_fail"))
}
