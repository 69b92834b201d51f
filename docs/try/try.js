"use strict";(()=>{function a(t,n={},...e){return R(document.createElement(t),n,e)}function O(t){return[t].flat(1/0).filter(e=>e!=null&&e!==!1)}function R(t,n,e){for(let[s,r]of Object.entries(n))r==null||
r===!1||(typeof r=="function"?t.addEventListener(s.slice(2),r):t.setAttribute(s,r===!0?"":String(r)));return t.append(...O(
e)),t}var x=t=>t instanceof Error?t.message:String(t);function S(t,n=3){return t===1/0?"∞":Number.isFinite(t)?t!==0&&Math.abs(
t)<.5*10**-n?t.toExponential(1).replace("e-","e−").replace(/^-/,"−"):t.toFixed(n).replace("-","−"):"–"}function k(t,n,e={}){return a("button",{type:"button",onclick:n,...e},t)}var N=(t,n)=>t.map(e=>{if(!e.residual)return e;let s=Float64Array.from(e.values,r=>(1-n)*r);for(let r=0;r<Math.min(e.rows,
e.cols);r++)s[r*e.cols+r]+=n;return{...e,values:s}});function q(t,{rows:n,cols:e,values:s}){let r=new Float64Array(e);for(let o=0;o<n;o++)if(t[o])for(let i=0;i<e;i++)r[i]+=t[o]*
s[o*e+i];return r}function M(t,n,e){let{cols:s,values:r}=t[n];return t.slice(0,n).reduceRight(q,Float64Array.from(r.subarray(e*s,(e+1)*s)))}var g={layers:48,positions:128},F={tokens:"[CLS] the key to the cabinets [EOS]",weights:`[[[0.25395, 0.04134, 0.05665, 0\
.02781, 0.00842, 0.48751, 0.12432],
  [0.54555, 0.10294, 0.20528, 0.00916, 0.02912, 0.05171, 0.05624],
  [0.06805, 0.25432, 0.13207, 0.36745, 0.04409, 0.03945, 0.09457],
  [0.30479, 0.00448, 0.16789, 0.08135, 0.25424, 0.06004, 0.12721],
  [0.39316, 0.02176, 0.02798, 0.19578, 0.1062, 0.23908, 0.01603],
  [0.00298, 0.00583, 0.0637, 0.19856, 0.13865, 0.30801, 0.28227],
  [0.04852, 0.00961, 0.07398, 0.02064, 0.01738, 0.68023, 0.14963]],
 [[0.06243, 0.02101, 0.47936, 0.03827, 0.02554, 0.26719, 0.10619],
  [0.07925, 0.25585, 0.1495, 0.10518, 0.11432, 0.19259, 0.10331],
  [0.08133, 0.01895, 0.22214, 0.19061, 0.01789, 0.35624, 0.11283],
  [0.08809, 0.18924, 0.30873, 0.16038, 0.08962, 0.07752, 0.08642],
  [0.10507, 0.14959, 0.22371, 0.12984, 0.11059, 0.18398, 0.09721],
  [0.11009, 0.0358, 0.28962, 0.14674, 0.12334, 0.14483, 0.14958],
  [0.07438, 0.05202, 0.42103, 0.07374, 0.03935, 0.23954, 0.09994]],
 [[0.06146, 0.03459, 0.3087, 0.05985, 0.15296, 0.29966, 0.08278],
  [0.07448, 0.14384, 0.29752, 0.15268, 0.01791, 0.24502, 0.06856],
  [0.05863, 0.29384, 0.0231, 0.20612, 0.05573, 0.29355, 0.06903],
  [0.03455, 0.18076, 0.32732, 0.08548, 0.1754, 0.16999, 0.0265],
  [0.05972, 0.18301, 0.2374, 0.21339, 0.09143, 0.15237, 0.06268],
  [0.15448, 0.04229, 0.0187, 0.04821, 0.32331, 0.19127, 0.22175],
  [0.08584, 0.10071, 0.21624, 0.07011, 0.1555, 0.24707, 0.12451]],
 [[0.04843, 0.03729, 0.41307, 0.12453, 0.01017, 0.10045, 0.26606],
  [0.0918, 0.1392, 0.09849, 0.10209, 0.19202, 0.32161, 0.05479],
  [0.07284, 0.23012, 0.1264, 0.20815, 0.0385, 0.19115, 0.13285],
  [0.07413, 0.21052, 0.14793, 0.08122, 0.27933, 0.14112, 0.06575],
  [0.08443, 0.07238, 0.04701, 0.093, 0.22693, 0.40972, 0.06653],
  [0.08961, 0.05526, 0.23624, 0.16511, 0.11374, 0.24069, 0.09935],
  [0.0486, 0.07653, 0.42883, 0.18119, 0.0399, 0.03415, 0.19081]],
 [[0.00801, 0.11029, 0.73156, 0.03094, 0.00701, 0.09959, 0.0126],
  [0.0295, 0.22409, 0.19235, 0.15959, 0.17983, 0.18392, 0.03072],
  [0.1508, 0.12626, 0.3373, 0.05126, 0.11193, 0.07397, 0.14847],
  [0.10076, 0.07696, 0.03317, 0.14438, 0.2207, 0.35724, 0.06679],
  [0.09682, 0.11859, 0.03698, 0.16583, 0.25002, 0.2511, 0.08065],
  [0.15849, 0.12815, 0.1268, 0.07254, 0.14311, 0.21831, 0.15258],
  [0.01421, 0.14805, 0.6347, 0.08193, 0.01422, 0.08629, 0.0206]],
 [[0.15282, 0.11161, 0.24402, 0.03126, 0.02989, 0.14678, 0.28361],
  [0.08787, 0.29063, 0.08317, 0.19236, 0.10919, 0.14242, 0.09437],
  [0.04925, 0.14061, 0.43078, 0.12014, 0.13694, 0.06635, 0.05593],
  [0.06236, 0.19052, 0.05118, 0.31767, 0.15497, 0.15614, 0.06716],
  [0.06904, 0.16039, 0.14702, 0.27872, 0.16633, 0.126, 0.0525],
  [0.11265, 0.14081, 0.19048, 0.11874, 0.11629, 0.14078, 0.18025],
  [0.15017, 0.14557, 0.15774, 0.04445, 0.0482, 0.18054, 0.27335]]]`};async function I(t){let n=Uint8Array.from(atob(t),o=>o.
charCodeAt(0)),e=await WebAssembly.compile(n),s={};for(let{module:o,name:i}of WebAssembly.Module.imports(e))(s[o]??={})[i]=
()=>{if(i==="proc_exit")throw new Error("the solver stopped");return 0};let r=(await WebAssembly.instantiate(e,s)).exports;
return r._initialize(),r}function W(t,n,e){let s=n[0].cols,r=s*s,o=t.malloc(8*r*n.length),i=t.malloc(8*s),l=new Float64Array(
t.memory.buffer,o,r*n.length);n.forEach((u,f)=>l.set(u.values,f*r)),t.flow_row(o,n.length,s,e,i);let m=new Float64Array(
t.memory.buffer,i,s).slice();return t.free(o),t.free(i),m}function _(t){let n;try{n=JSON.parse(t)}catch(o){throw new Error(
`The weights are not JSON (${x(o)}). Expected nested lists of numbers.`)}let e=v(n,"The weights are");if(e.length>g.layers)
throw new Error(`There are ${e.length} layers. This page takes ${g.layers}.`);let s=e.map((o,i)=>{let l=v(o,`L${i+1} is`),
u=(Array.isArray(l[0])&&Array.isArray(l[0][0])?l:[l]).map(p=>j(p,i)),f=u[0].map((p,d)=>u.reduce((h,w)=>h+w[d],0)/u.length),
c=Math.sqrt(f.length);return{rows:c,cols:c,values:f,carried:[0,0],residual:!0}}),r=s.findIndex(o=>o.rows!==s[0].rows);if(r>
0)throw new Error(`L${r+1} has ${s[r].rows} positions, and L1 has ${s[0].rows}. Expected the same.`);return s}function j(t,n){
let e=v(t,`L${n+1} is`).map(o=>v(o,`A row of L${n+1} is`)),s=e.length;if(s>g.positions)throw new Error(`There are ${s} p\
ositions. This page takes ${g.positions}.`);let r=e.findIndex(o=>o.length!==s);if(r>=0)throw new Error(`Row ${r} of L${n+
1} has ${e[r].length} weights. Expected ${s}, one for each position.`);return new Float64Array(e.flat().map(o=>{if(typeof o!=
"number"||!(o>=0)||o===1/0)throw new Error(`L${n+1} has the weight ${JSON.stringify(o)}. Expected numbers from 0 on.`);return o}))}
function v(t,n){if(!Array.isArray(t)||!t.length)throw new Error(`${n} no list, or an empty one. Expected a list.`);return t}
function z(t,n){let e=a("textarea",{rows:"10",spellcheck:"false","aria-label":"attention weights"}),s=a("input",{"aria-l\
abel":"tokens, separated by spaces"}),r=a("input",{type:"number",min:"0",max:"1",step:"0.1",value:"0.5"}),o=a("select"),
i=a("select"),l=a("div",{"aria-live":"polite"});function m(){try{let c=_(e.value),p=Number(r.value);if(r.value===""||!(p>=
0&&p<=1))throw new Error(`The residual weight is ${r.value||"empty"}. Expected a number from 0 to 1.`);let d=s.value.trim().
split(/\s+/),h=c[0].rows,w=Array.from({length:h},(C,y)=>d.length===h?d[y]:String(y));T(o,c.map((C,y)=>`L${y+1}`),c.length-
1),T(i,w,0);let $=Number(o.value),b=Number(i.value),A=N(c,p).slice(0,$+1),L=c[$].values.slice(b*h,(b+1)*h);H(l,w,[L,M(A,
$,b),W(n,A,b)])}catch(c){l.replaceChildren(a("p",{class:"try-error"},x(c)))}}let u=k("example",()=>{[e.value,s.value]=[F.
weights,F.tokens],m()}),f=[a("label",{},"layer ",o),a("label",{},"query ",i),a("label",{},"residual weight ",r)];t.replaceChildren(
a("label",{},"attention weights: [layer][query][key] or [layer][head][query][key]",e),a("label",{},"tokens (optional)",s),
a("p",{class:"try-fields"},...f,u),l);for(let c of[e,s,r,o,i])c.addEventListener("input",m);u.click()}function T(t,n,e){
let s=t.value!==""&&Number(t.value)<n.length?t.value:String(e);t.replaceChildren(...n.map((r,o)=>a("option",{value:String(
o)},r))),t.value=s}function H(t,n,e){let s=n.map((o,i)=>a("tr",{},a("th",{scope:"row"},o),...e.map(l=>a("td",{"data-valu\
e":String(l[i])},a("span",{class:"try-bar",style:`width:${4*l[i]}em`}),S(l[i]))))),r=["token","raw","rollout","flow"].map(
o=>a("th",{scope:"col"},o));t.replaceChildren(a("table",{},a("thead",{},a("tr",{},...r)),a("tbody",{},...s)))}var E=document.
querySelector("#try");E instanceof HTMLElement&&I(globalThis.attnflowSolver).then(t=>z(E,t),t=>E.textContent=`This brows\
er cannot run the solver: ${x(t)}`);})();
