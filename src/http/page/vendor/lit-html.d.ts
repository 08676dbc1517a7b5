// What the page uses of lit-html, for `cargo xtask types`. Not of the package: whatever stands in a template is free.

export interface TemplateResult { readonly _$litType$: unknown }
export function html(strings: TemplateStringsArray, ...values: unknown[]): TemplateResult;
export function svg(strings: TemplateStringsArray, ...values: unknown[]): TemplateResult;
export function render(value: unknown, into: Element): unknown;
export const nothing: any;
